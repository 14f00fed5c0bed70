"""MODEL.md, as people and their shells read it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from cohort.repository import Example, Manifest
from cohort.tensors import Array
from cohort_prepare.publishing.card import write_card


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        pytest.param(np.array([["it's"]], object), [["it's"]], id="a quote"),
        pytest.param(np.zeros((1, 5000), np.float32), "…", id="too much to read"),
    ],
)
def test_the_request_that_is_shown_is_one(tmp_path: Path, array: Array, shown: object) -> None:
    """A shell gives curl JSON with the model's inputs by name, large ones cut."""
    example = Example({"it's x": array}, {})
    manifest = Manifest(1, model="words", examples=(example,))
    write_card(tmp_path, manifest, given=True, signer="", notes=())
    fenced = (tmp_path / "MODEL.md").read_text().split("```sh\n")[1].split("```")[0]
    *_, body = shlex.split(fenced)
    assert json.loads(body) == {"model": "words", "inputs": {"it's x": shown}}
