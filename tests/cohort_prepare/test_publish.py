"""`cohort publish`: a model becomes a version that a server takes, or nothing is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from cohort.cli import cli
from cohort.errors import LoadFailed
from cohort.onnx_engine import VersionOpener
from cohort.onnx_engine.preparation import prepare_version
from cohort.registry import Source
from cohort.repository import ModelConfig, PublishedRows, Trust, fingerprint_of, read_manifest, scan
from cohort.session import Provider, open_session
from cohort_prepare.publishing import placing
from tests import onnx_models
from tests.e2e.mixing_models import BROUGHT
from tests.e2e.processes import quick_command
from tests.signed import OURS
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
SIGNER = fingerprint_of(OURS.public_key())


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time few runs: what is measured is for the manifest, not for these tests."""
    monkeypatch.setattr("cohort_prepare.publishing.evidence.LATENCY_SECONDS", 0.02)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return onnx_models.save(onnx_models.mlp(), tmp_path / "mlp.onnx")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.random.default_rng(0).standard_normal((40, 4)).astype("f4"))
    return path


def publish(model: Path, *options: object, code: int = 0, to: str = "models") -> dict[str, Any]:
    """Run the command and return its JSON."""
    arguments = ["publish", str(model), "--name", "mlp", "--to", str(model.parent / to), "--json"]
    done = CliRunner().invoke(cli, [*arguments, *map(str, options)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout)
    assert found["good"] is (code == 0)
    return dict(found)


def load(folder: Path, trust: Trust | None = None) -> None:
    source = Source(folder / "model.onnx", "", ModelConfig(providers=(Provider("cpu"),)))
    prepare_version(source, VersionOpener(None, trust=trust)).close()


def left(models: Path) -> list[str]:
    return (
        sorted(str(one.relative_to(models)) for one in models.rglob("*")) if models.exists() else []
    )


def test_published_version_has_all_that_was_seen_of_it(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    """A server finds and loads it; people read the card."""
    found = publish(model, "--examples", rows)
    folder = tmp_path / "models" / "mlp" / "1"
    assert (found["version"], found["place"], found["already"]) == (1, str(folder), False)
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.model == "mlp"
    assert [len(one.inputs["x"]) for one in manifest.examples] == [1, 8]
    assert [one.count for one in manifest.features["x"].columns] == [40] * 4
    assert manifest.latency_ms.keys() == {1, 8, 32}
    assert manifest.size_bytes is not None
    assert manifest.size_bytes.after == model.stat().st_size
    assert manifest.rows == PublishedRows("proven")
    assert (folder / "model.onnx").read_bytes() == model.read_bytes()
    assert left(folder) == [
        "MODEL.md",
        "features.svg",
        "latency.svg",
        "manifest.json",
        "model.onnx",
    ]
    card = (folder / "MODEL.md").read_text()
    assert "curl -s localhost:8000/predict" in card
    assert all(one in card for one in manifest.files.values())
    assert scan(tmp_path / "models", quiet=0).models["mlp"].versions.keys() == {1}
    load(folder)


def test_a_model_whose_rows_mix_is_published_with_the_reason(tmp_path: Path) -> None:
    """The manifest, the card and the terminal have it; the terminal also states what to do."""
    path = onnx_models.save(onnx_models.dynamically_quantized(), tmp_path / "q.onnx")
    found = publish(path)
    assert found["manifest"]["rows"]["verdict"] == "refuted"
    (note,) = [one for one in found["notes"] if "one by one" in one]
    assert "DynamicQuantizeLinear 'xq'" in note
    assert "to batch: quantize statically" in note
    card = (tmp_path / "models/mlp/1/MODEL.md").read_text()
    assert "DynamicQuantizeLinear 'xq'" in card
    assert "may batch its requests" not in card


def test_rows_are_proven_for_the_sizes_of_the_examples(tmp_path: Path) -> None:
    """The proof is that of a server, which has the manifest's examples."""
    model = onnx_models.save(BROUGHT["heard"].model(), tmp_path / "heard.onnx")
    request: Any = {
        "sound": np.ones((3, 16), "f4"), "state": np.ones((2, 3, 8), "f4"), "rate": np.array(8),
    }  # fmt: skip
    np.savez(tmp_path / "rows.npz", **request)
    found = publish(model, "--examples", tmp_path / "rows.npz", to=str(tmp_path / "models"))
    assert found["manifest"]["rows"]["verdict"] == "shared"
    assert not [one for one in found["notes"] if "one by one" in one]


def test_others_may_read_what_was_published(model: Path, tmp_path: Path) -> None:
    """A server runs as another user than who publishes."""
    publish(model)
    folder = tmp_path / "models" / "mlp" / "1"
    assert folder.stat().st_mode & 0o055 == 0o055
    assert (folder / "model.onnx").stat().st_mode & 0o044 == 0o044


def test_same_files_are_published_once_and_others_get_the_next_number(
    model: Path, tmp_path: Path
) -> None:
    """A pipeline can run twice. No version is overwritten, whichever numbers exist."""
    publish(model)
    found = publish(model)
    assert (found["version"], found["already"]) == (1, True)
    (tmp_path / "models/mlp/7").mkdir()
    onnx_models.save(onnx_models.mlp(seed=1), model)
    assert publish(model)["version"] == 8
    assert left(tmp_path / "models/mlp/7") == []


def test_what_is_published_already_meets_what_is_given_with_it(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    """Wrong arguments in a pipeline also fail the second time."""
    publish(model, "--examples", rows)
    gone, labels = tmp_path / "gone.npz", tmp_path / "labels.npy"
    np.save(labels, np.zeros(39))
    assert "gone.npz" in publish(model, "--examples", gone, code=2)["error"]
    told = publish(model, "--examples", rows, "--labels", labels, code=2)["error"]
    assert "labels of shape [39], but 40 rows need one each" in told
    other = onnx_models.save(onnx_models.mlp(seed=1), tmp_path / "other.onnx")
    assert "differs from its source" in publish(model, "--source", other, code=1)["error"]
    assert "--quantize" in publish(model, "--calibration", gone, code=2)["error"]
    assert "--source" in publish(model, "--from", "pytorch", code=2)["error"]
    found = publish(model, "--examples", rows)
    assert (found["version"], found["already"]) == (1, True)


def pem(key: Any = OURS, secret: bytes | None = None) -> bytes:
    how = NoEncryption() if secret is None else BestAvailableEncryption(secret)
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))


def test_signed_version_loads_where_its_key_is_trusted(model: Path, tmp_path: Path) -> None:
    """An unsigned version is published again, so that it can be signed."""
    trust = Trust({SIGNER: OURS.public_key()})
    key = tmp_path / "publisher.key"
    key.write_bytes(pem())
    publish(model)
    with pytest.raises(LoadFailed, match="it is not signed"):
        load(tmp_path / "models/mlp/1", trust)
    found = publish(model, "--sign", key)
    assert (found["version"], found["signed_by"]) == (2, SIGNER)
    assert publish(model, "--sign", key)["already"]
    load(tmp_path / "models/mlp/2", trust)


def test_encrypted_key_needs_its_passphrase(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from a variable if there is no terminal to ask at."""
    key = tmp_path / "publisher.key"
    key.write_bytes(pem(secret=b"secret"))
    assert "COHORT_SIGNING_PASSPHRASE" in publish(model, "--sign", key, code=2)["error"]
    monkeypatch.setenv("COHORT_SIGNING_PASSPHRASE", "wrong")
    assert "is the passphrase correct?" in publish(model, "--sign", key, code=2)["error"]
    monkeypatch.setenv("COHORT_SIGNING_PASSPHRASE", "secret")
    assert publish(model, "--sign", key)["signed_by"] == SIGNER


def test_external_data_goes_along(tmp_path: Path) -> None:
    """It keeps its name and has its digest in the manifest."""
    path = tmp_path / "table.onnx"
    onnx_models.save_with_external_data(onnx_models.table(size=1000), path)
    np.savez(tmp_path / "rows.npz", index=np.array([[3], [5]]))
    publish(path, "--examples", tmp_path / "rows.npz")
    folder = tmp_path / "models/mlp/1"
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.files.keys() == {"model.onnx", "weights.bin"}
    load(folder)


def unknown_operator(path: Path) -> Path:
    model = onnx.load(path)
    model.graph.node[0].op_type = "Frobnicate"
    model.graph.node[0].domain = "com.example"
    model.opset_import.add(domain="com.example", version=3)
    onnx.save(model, path)
    return path


def wrong_shapes(path: Path) -> Path:
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 77
    onnx.save(model, path)
    return path


def outside(path: Path, location: str = "../weights.bin") -> Path:
    onnx_models.save_with_external_data(onnx_models.table(size=1000), path)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(model, path)
    return path


def without_outputs(path: Path) -> Path:
    model = onnx.load(path)
    del model.graph.output[:]
    onnx.save(model, path)
    return path


def in_itself(path: Path) -> Path:
    return outside(path, path.name)


def truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-20])
    return path


def text(path: Path) -> Path:
    path.write_text("not a model")
    return path


def gone(path: Path) -> Path:
    path.unlink()
    return path


@pytest.mark.parametrize(
    ("harm", "code", "says"),
    [
        (unknown_operator, 1, "does not have Frobnicate of com.example, opset 3 (1 node)"),
        (wrong_shapes, 1, "is not valid ONNX"),
        (outside, 1, "'../weights.bin' leaves the version's folder"),
        (without_outputs, 1, "has no outputs"),
        (in_itself, 1, "names itself as its external data"),
        (truncated, 2, "is truncated"),
        (text, 2, "/mlp.onnx is text, not ONNX"),
        (gone, 2, "not found"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_model_that_cannot_serve_is_not_published(
    model: Path, tmp_path: Path, harm: Callable[[Path], Path], code: int, says: str
) -> None:
    """The error states the fault, and no folder is left."""
    assert says in publish(harm(model), code=code)["error"]
    assert left(tmp_path / "models") == []


@pytest.mark.parametrize(
    ("arrays", "code", "says"),
    [
        ({"y": np.zeros((2, 4), "f4")}, 2, "has 'y', but the model has no such input"),
        ({"x": np.zeros((2, 5), "f4")}, 2, "rows.npz"),
        ({"x": np.zeros((0, 4), "f4")}, 2, "has no rows"),
        (
            {"x": np.zeros((2, 4), "f4"), "output:y": np.full((2, 3), 9, "f4")},
            1,
            "differ from those in",
        ),
    ],
)
def test_examples_that_do_not_fit_are_told(
    model: Path, tmp_path: Path, arrays: dict[str, Any], code: int, says: str
) -> None:
    """A wrong name is a mistake of the caller's, a wrong output one of the model's."""
    name = onnx.load(model).graph.output[0].name
    np.savez(tmp_path / "rows.npz", **{n.replace(":y", f":{name}"): a for n, a in arrays.items()})
    assert says in publish(model, "--examples", tmp_path / "rows.npz", code=code)["error"]
    assert left(tmp_path / "models") == []


def test_wrong_output_is_told_by_its_row_in_the_file(model: Path, rows: Path) -> None:
    """The row is right for any division of the rows into runs."""
    session = open_session(model)
    x = np.random.default_rng(0).standard_normal((100, 4)).astype("f4")
    y = session.run({"x": x})[0]
    y[90, 2] += 1
    arrays: dict[str, Any] = {"x": x, f"output:{session.outputs[0].name}": y}
    np.savez(rows, **arrays)
    assert "at [90, 2]" in publish(model, "--examples", rows, code=1)["error"]


def test_name_that_cannot_be_one_is_refused(model: Path, tmp_path: Path) -> None:
    """No file is written outside the models folder."""
    arguments = ["publish", str(model), "--name", "../mlp", "--to", str(tmp_path / "models")]
    assert CliRunner().invoke(cli, arguments).exit_code == 2
    assert left(tmp_path / "models") == []


def test_two_who_publish_at_once_get_two_numbers(tmp_path: Path) -> None:
    """Each version is also complete."""

    def one(content: int) -> int:
        with placing.folder_for_version(tmp_path / "models" / "mlp") as folder:
            (folder / "model.onnx").write_text(str(content))
            (folder / "MODEL.md").write_text(str(content))
            return placing.place(folder)

    with ThreadPoolExecutor(8) as threads:
        numbers = list(threads.map(one, range(24)))
    assert sorted(numbers) == list(range(1, 25))
    for content, number in enumerate(numbers):
        for name in ("model.onnx", "MODEL.md"):
            assert (tmp_path / "models/mlp" / str(number) / name).read_text() == str(content)
    assert len(left(tmp_path / "models" / "mlp")) == 24 * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_nothing_is_left(
    model: Path, rows: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """A new model's folder is removed as well."""
    command = [*quick_command(), "publish", str(model), "--name", "mlp"]
    process = subprocess.Popen(
        [*command, "--to", str(tmp_path / "models"), "--examples", str(rows)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: list((tmp_path / "models").glob("mlp/.publishing-*")))
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b"nothing was written" in said
    assert left(tmp_path / "models") == []


def test_a_source_is_compared_as_verify_does(model: Path, rows: Path) -> None:
    """What was measured is in the manifest; another model is a verdict, and no version is there."""
    found = publish(model, "--source", model, "--examples", rows)
    assert found["manifest"]["difference"] == {"max_absolute": 0, "max_relative": 0, "rows": 43}
    other = onnx.load(model)
    weight = next(one for one in other.graph.initializer if len(one.dims) == 2)
    weight.CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, weight.name)
    )
    onnx.save(other, model.with_name("other.onnx"))
    refused = publish(model, "--source", model.with_name("other.onnx"), to="others", code=1)
    assert "the model differs from its source" in refused["error"]
    assert not list((model.parent / "others").rglob("model.onnx"))
