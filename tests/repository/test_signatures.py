"""Signatures of versions in a scan, when one version takes over from another."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx

from cohort.repository import Snapshot, scan
from tests import onnx_models


def put(models: Path, version: int, model: onnx.ModelProto) -> None:
    onnx_models.save(model, models / f"m/{version}/model.onnx")


def inputs(snapshot: Snapshot) -> dict[int, list[str] | None]:
    """Return the names of the inputs of versions whose signatures count."""
    found = snapshot.models["m"].signatures
    return {n: one and [spec.name for spec in one.inputs] for n, one in found.items()}


def test_signatures_count_where_versions_take_over_from_each_other(tmp_path: Path) -> None:
    """A single version, versions outside `versions`, and allowed changes do not count."""
    put(tmp_path, 1, onnx_models.mlp())
    assert inputs(scan(tmp_path, quiet=0)) == {}
    put(tmp_path, 2, onnx_models.two_inputs())
    config = tmp_path / "m/config.yaml"
    for text, known in (("", True), ("versions: all\n", True), ("versions: [2]\n", False)):
        config.write_text(text)
        assert inputs(scan(tmp_path, quiet=0)) == ({1: ["x"], 2: ["a", "b"]} if known else {})
    config.write_text("allow_signature_change: true\n")
    assert inputs(scan(tmp_path, quiet=0)) == {}


def test_what_is_no_model_has_none(tmp_path: Path) -> None:
    """A broken file is a version without a signature, and no reason to fail."""
    put(tmp_path, 1, onnx_models.mlp())
    (tmp_path / "m/2").mkdir()
    (tmp_path / "m/2/model.onnx").write_bytes(b"\x07 not a model")
    assert inputs(scan(tmp_path, quiet=0)) == {1: ["x"], 2: None}


def test_each_file_is_read_once(tmp_path: Path) -> None:
    """A second scan has every signature from the first one."""
    put(tmp_path, 1, onnx_models.mlp())
    put(tmp_path, 2, onnx_models.mlp())
    first = scan(tmp_path, quiet=0)
    assert len(first.signatures) == 2
    again = scan(tmp_path, first, quiet=0)
    for stamp, signature in first.signatures.items():
        assert again.signatures[stamp] is signature


def test_what_cannot_be_read_now_keeps_its_signature(tmp_path: Path) -> None:
    """A version stays if the one before it cannot be read for a moment."""
    put(tmp_path, 1, onnx_models.mlp())
    put(tmp_path, 2, onnx_models.two_inputs())
    first = scan(tmp_path, quiet=0)
    (tmp_path / "m/1/model.onnx").unlink()  # not for long enough to count as gone
    forgotten = dataclasses.replace(first, signatures={})
    assert inputs(scan(tmp_path, forgotten, quiet=60)) == {1: ["x"], 2: ["a", "b"]}
