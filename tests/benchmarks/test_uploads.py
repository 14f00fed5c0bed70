"""Files that the doors send: what Cohort and the tutorial server read from them."""

from __future__ import annotations

import importlib
from types import ModuleType

import httpx
import numpy as np
import onnxruntime as ort
import pytest

from benchmarks import models
from benchmarks.lane import Kind
from benchmarks.uploads import npy_bodies, npy_forms
from benchmarks.workloads import IMAGE
from cohort.http.fast_path.heads import SentHeaders
from cohort.http.predict.calls import file_parser

IMAGES = [one["image"] for one in IMAGE.requests()]

COHORT = (npy_bodies(IMAGE, "/"), npy_forms(IMAGE, "/", "image"))
TUTORIAL = (npy_bodies(IMAGE, "/npy"), npy_forms(IMAGE, "/form", "file"))
WAYS = ["body", "form"]


def headers_of(kind: Kind) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in kind.headers)


@pytest.mark.parametrize("kind", COHORT, ids=WAYS)
def test_cohort_reads_the_array_of_each_request(kind: Kind) -> None:
    """It comes for the model's only input, or for the one that the form names."""
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers_of(kind).items()]
    parse = file_parser(SentHeaders(pairs))
    for body, image in zip(kind.bodies, IMAGES, strict=True):
        (file,) = parse(body)
        assert file.name in {None, "image"}
        assert file.array is not None
        np.testing.assert_array_equal(file.array, image)


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The tutorial server's module, with the model that takes an image."""
    model = models.build(IMAGE.model, tmp_path_factory.mktemp("models"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL", str(model))
        return importlib.import_module("benchmarks.others.tutorial")


@pytest.mark.parametrize("kind", TUTORIAL, ids=WAYS)
async def test_the_tutorial_server_answers_each_request(tutorial: ModuleType, kind: Kind) -> None:
    """Each answer is the model's prediction for the image."""
    session = ort.InferenceSession(models.means().SerializeToString())
    transport = httpx.ASGITransport(tutorial.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://tutorial") as client:
        for body, image in zip(kind.bodies, IMAGES, strict=True):
            answer = await client.post(kind.paths[0], content=body, headers=headers_of(kind))
            (right,) = session.run(None, {"image": image})
            np.testing.assert_allclose(answer.json()["prediction"], right, rtol=1e-5)


@pytest.mark.parametrize("kind", [*COHORT, *TUTORIAL], ids=[f"{s} {w}" for s in "ct" for w in WAYS])
def test_wrk_sends_files_as_they_are(kind: Kind) -> None:
    """Their bytes are kept: the default script would replace each `@`, which numbers contain."""
    assert any(b"@" in body for body in kind.bodies)
    assert "@" not in kind.script
