"""Pipelines in a remote repository: published, signed, fetched with their members, and checked."""

from __future__ import annotations

import json
from pathlib import Path
from signal import SIGHUP
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cohort.cli import cli
from cohort.remote import Mirror
from cohort.repository import Manifest, dump_manifest, sign_manifest
from cohort.session.digests import hash_file
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.pipelines.graphs import affine
from tests.remote.servers import Bucket
from tests.remote.test_commands import run
from tests.remote.test_web_server import WITH_RANGES, web_server, write
from tests.signed import OURS, trust
from tests.waiting import PATIENCE, wait_until

PIPELINE = """\
steps:
  first: {model: member, version: 1, inputs: {x: x}}
  second: {model: member, inputs: {x: first.y}}
outputs: {y: {from: second.y, labels: labels.txt}}
"""
LABELS = "a\nb\nc\nd\n"


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A pipeline with its labels and a file that does not belong to it; and a trusted key."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "labels.txt").write_text(LABELS)
    (folder / "notes.txt").write_text("not published")
    (folder / "pipeline.yaml").write_text(PIPELINE)
    pem = OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key").write_bytes(pem)
    trust(tmp_path / "trusted.pem", OURS)
    return folder / "pipeline.yaml"


def publish(path: Path, name: str, to: object, key: Path | None, *more: str, code: int = 0) -> Any:
    """Return the report of the command."""
    sign = [] if key is None else ["--sign", str(key)]
    arguments = ["publish", str(path), "--name", name, "--to", str(to), "--json", *sign, *more]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def answer(server: Cohort) -> Any:
    body = {"input": [[1.0, 2.0, 3.0, 4.0]]}
    return httpx.post(f"{server.url}/models/whole/predict", json=body).json()


def test_a_signed_pipeline_goes_through_a_bucket(
    bucket: Bucket, pipeline: Path, tmp_path: Path
) -> None:
    """It has its named files, and members that only it wants; no changed version serves."""
    for factor in (2.0, 10.0):
        member = onnx_models.save(affine(factor), tmp_path / f"{factor}.onnx")
        publish(member, "member", bucket.url, tmp_path / "key")
    first = publish(pipeline, "whole", bucket.url, tmp_path / "key")
    assert (first["version"], first["place"]) == (1, f"{bucket.url}/whole/1")
    assert set(first["manifest"]["files"]) == {"pipeline.yaml", "labels.txt"}
    again = publish(pipeline, "whole", bucket.url, tmp_path / "key")
    assert (again["version"], again["already"]) == (1, True)
    assert not [path for path in bucket.paths if path.endswith("notes.txt")]
    with cohort(bucket.url, tmp_path, trusted_keys=tmp_path / "trusted.pem") as server:
        wait_until(lambda: answer(server).get("prediction") == [[20.0, 40.0, 60.0, 80.0]])
        assert answer(server)["labels"][0]["label"] == "d"
        (pipeline.parent / "labels.txt").write_text("e\nf\ng\nh\n")
        assert publish(pipeline, "whole", bucket.url, tmp_path / "key")["version"] == 2
        bucket.put("whole/2/labels.txt", LABELS.replace("d", "x").encode())
        server.process.send_signal(SIGHUP)
        sentence = "whole/2/labels.txt is not the file that was published"
        wait_until(lambda: sentence in server.get("/health").text)
        assert answer(server)["version"] == "1"


def test_check_fetches_the_members_that_steps_name(
    bucket: Bucket, pipeline: Path, tmp_path: Path
) -> None:
    """They include an old version; a pipeline next to the versions is reported."""
    for number, factor in ((1, 2.0), (2, 10.0)):
        path = onnx_models.save(affine(factor), tmp_path / f"{number}.onnx")
        bucket.put(f"member/{number}/model.onnx", path)
    publish(pipeline, "whole", bucket.url, None)
    good = run(tmp_path, "check", bucket.url)
    assert good.exit_code == 0, good.output
    assert "No problems: 2 models, 3 versions." in good.stdout
    bucket.put("loose/pipeline.yaml", pipeline)
    bad = run(tmp_path, "check", bucket.url)
    assert bad.exit_code == 1
    told = "loose/pipeline.yaml: is not read from here; put it at loose/1/pipeline.yaml"
    assert told in bad.stdout


def test_a_web_server_has_pipelines(tmp_path: Path) -> None:
    """SHA256SUMS names their files as any others."""
    write(tmp_path / "web", **{"whole/1/pipeline.yaml": PIPELINE.encode()})
    with web_server(tmp_path / "web", WITH_RANGES) as port:
        mirror = Mirror(f"http://127.0.0.1:{port}", tmp_path / "mirror")
        mirror.sync()
        assert mirror.wait(PATIENCE)
        mirror.close()
    assert (mirror.models / "whole/1/pipeline.yaml").read_text() == PIPELINE
    assert not mirror.status.problems


def test_a_file_that_was_not_signed_is_not_read(pipeline: Path, tmp_path: Path) -> None:
    """Labels next to a signed pipeline that its manifest does not name make it UNAVAILABLE."""
    models = tmp_path / "models"
    version = models / "whole/1"
    version.mkdir(parents=True)
    (version / "pipeline.yaml").write_text(PIPELINE.replace(", version: 1", ""))
    digest = hash_file(version / "pipeline.yaml")
    manifest = dump_manifest(Manifest(1, {"pipeline.yaml": digest}, model="whole"))
    (version / "manifest.json").write_bytes(manifest)
    (version / "manifest.sig").write_bytes(sign_manifest(manifest, OURS))
    (version / "labels.txt").write_text(LABELS)
    publish(onnx_models.save(affine(2), tmp_path / "2.onnx"), "member", models, tmp_path / "key")
    with cohort(models, tmp_path, trusted_keys=tmp_path / "trusted.pem") as server:
        (found,) = server.get("/models/whole").json()["versions"]
        assert found["state"] == "UNAVAILABLE"
        assert "opens 'labels.txt', which manifest.json does not name" in found["reason"]


def test_what_cannot_be_published_is_told(pipeline: Path, tmp_path: Path) -> None:
    """A mistake in it, a file that is not there, and what is for models; nothing is made."""
    models = tmp_path / "models"
    options = ("--optimize",)
    told = publish(pipeline, "whole", models, None, *options, code=2)["error"]
    assert "a pipeline.yaml is published unchanged" in told
    (pipeline.parent / "labels.txt").unlink()
    told = publish(pipeline, "whole", models, None, code=1)["error"]
    assert told.endswith("it names labels.txt, which is not in the same folder")
    pipeline.write_text(PIPELINE.replace("first.y", "frist.y"))
    told = publish(pipeline, "whole", models, None, code=1)["error"]
    assert "step 'frist' not found; did you mean 'first'?" in told
    assert not models.exists()


def test_members_that_are_not_there_yet_are_noted(pipeline: Path, tmp_path: Path) -> None:
    """The version is made: its models may come later."""
    models = tmp_path / "models"
    models.mkdir()
    made = publish(pipeline, "whole", models, None)
    (note,) = made["notes"]
    assert "cannot run with the models" in note
    assert "model 'member' not found" in note
    assert (models / "whole/1/labels.txt").read_text() == LABELS


NAMES_FILES = """\
inputs: {c: {categories: words.txt}}
steps: {only: {model: member, inputs: {c: c, x: x}}}
outputs:
  boxes: {from: only.boxes, detections: {scores: 4, labels: things.txt}}
"""


def test_files_of_categories_and_detections_are_published(tmp_path: Path) -> None:
    """A pipeline's manifest names each file that its inputs and outputs name."""
    for name, text in {
        "pipeline.yaml": NAMES_FILES,
        "words.txt": "a\n",
        "things.txt": "b\n",
    }.items():
        (tmp_path / name).write_text(text)
    made = publish(tmp_path / "pipeline.yaml", "whole", tmp_path / "models", None)
    assert set(made["manifest"]["files"]) == {"pipeline.yaml", "words.txt", "things.txt"}
    assert (tmp_path / "models/whole/1/things.txt").read_text() == "b\n"
