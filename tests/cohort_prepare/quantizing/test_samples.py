"""Rows to calibrate with: from files, folders and recorded requests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cohort.tensors import Array, TensorSpec
from cohort_prepare.failures import Misused
from cohort_prepare.quantizing.samples import read_samples

INPUTS = (TensorSpec("x", "FP32", (None, 2)),)


def rows(count: int) -> Array:
    return np.arange(2 * count, dtype=np.float32).reshape(count, 2)


def read(path: Path, inputs: tuple[TensorSpec, ...] = INPUTS) -> list[Array]:
    return [batch["x"] for batch in read_samples(path, inputs)]


def test_rows_of_a_file_come_in_batches(tmp_path: Path) -> None:
    """Seventy rows are two batches of 32 and one of six."""
    np.savez(tmp_path / "rows.npz", x=rows(70).astype(np.float64))
    batches = read(tmp_path / "rows.npz")
    assert [len(one) for one in batches] == [32, 32, 6]
    np.testing.assert_array_equal(np.concatenate(batches), rows(70))
    assert batches[0].dtype == np.float32


def test_a_folder_is_all_of_its_files(tmp_path: Path) -> None:
    """They are read in the order of their names: .npz, .npy and recorded requests."""
    np.savez(tmp_path / "b.npz", x=rows(3))
    np.save(tmp_path / "a.npy", rows(2) + 100)
    (tmp_path / "c.jsonl").write_text(json.dumps({"inputs": {"x": [[7, 8]]}}))
    (tmp_path / "README.md").write_text("not one of them")
    np.testing.assert_array_equal(
        np.concatenate(read(tmp_path)), np.concatenate([rows(2) + 100, rows(3), [[7, 8]]])
    )


def test_recorded_requests_of_both_protocols_are_read(tmp_path: Path) -> None:
    """/predict in both forms and /v2 infer; those of one shape are joined."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [5, 6]}
    lines = [
        {"inputs": {"x": [[1, 2]]}, "id": "a"},
        {"input": [[3, 4]]},
        {"inputs": [tensor], "outputs": [{"name": "y"}]},
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    (batch,) = read(tmp_path / "r.jsonl")
    np.testing.assert_array_equal(batch, [[1, 2], [3, 4], [5, 6]])


def test_requests_of_other_lengths_are_batches_of_their_own(tmp_path: Path) -> None:
    """Texts of three and of two tokens do not become one array."""
    lines = [[[1, 2, 3]], [[4, 5]], [[6, 7]]]
    text = "\n".join(json.dumps({"inputs": {"x": one}}) for one in lines)
    (tmp_path / "r.jsonl").write_text(text)
    batches = read(tmp_path / "r.jsonl", (TensorSpec("x", "INT64", (None, None)),))
    assert [one.shape for one in batches] == [(1, 3), (2, 2)]


def test_a_fixed_first_dimension_is_kept(tmp_path: Path) -> None:
    """Each run takes two rows; the last of five is left over."""
    np.savez(tmp_path / "rows.npz", x=rows(5))
    fixed = (TensorSpec("x", "FP32", (2, 2)),)
    assert [len(one) for one in read(tmp_path / "rows.npz", fixed)] == [2, 2]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.npz", b"PK\x03\x04 cut off", "truncated"),
        ("rows.csv", b"1,2", "must be a .npz file"),
        ("r.jsonl", b'{"inputs": {"x": [[1, 2]]}}\n{"inputs": ', r"r\.jsonl:2"),
        ("r.jsonl", b'{"inputs": {"x": [[1, 2, 3]]}}', r"must have shape \[\?, 2\], got \[1, 3\]"),
        ("r.jsonl", b'{"inputs": [{"name": "x"}]}', "must have name, datatype, shape and data"),
        ("r.jsonl", b"\n\n", "has no rows"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    """The error has the file and, for recorded requests, the line."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Misused, match=said):
        read(tmp_path / name)


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    """The error names the files that it should contain."""
    with pytest.raises(Misused, match=r"no \.npz, \.npy or \.jsonl files"):
        read(tmp_path)
