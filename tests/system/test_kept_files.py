"""Files that are read whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cohort.errors import LoadFailed
from cohort.generative.chat_template import open_template
from cohort.generative.config import read_genai_config
from cohort.processing.outputs import read_labels
from cohort.processing.tokenizing import open_tokenizer
from cohort.system.kept_files import read_content, why_unreadable

READERS: Mapping[str, Callable[[Path], object]] = {
    "tokenizer.json": lambda folder: open_tokenizer(folder / "tokenizer.json"),
    "tokenizer_config.json": open_template,
    "chat_template.jinja": open_template,
    "genai_config.json": lambda folder: read_genai_config(folder / "genai_config.json"),
    "labels.txt": lambda folder: read_labels("outputs.y", folder, "labels.txt"),
}


def make_special(path: Path, kind: str) -> None:
    """Make a pipe without a writer, a link to an endless device, or a folder."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", READERS)
def test_only_files_are_read(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe does not block the reader, and a device does not fill the memory."""
    make_special(tmp_path / name, kind)
    with pytest.raises(LoadFailed, match=rf"{name} cannot be read: it is not a file"):
        READERS[name](tmp_path)


def test_a_file_has_a_maximum_size(tmp_path: Path) -> None:
    """One byte more than the maximum is refused."""
    path = tmp_path / "small"
    path.write_bytes(b"1234")
    assert read_content(path, 4) == b"1234"
    with pytest.raises(ValueError, match="it is larger than 3 bytes"):
        read_content(path, 3)


def test_reasons_do_not_contain_the_path(tmp_path: Path) -> None:
    """Callers name the file themselves."""
    with pytest.raises(FileNotFoundError) as caught:
        read_content(tmp_path / "absent", 4)
    assert why_unreadable(caught.value) == "cannot be read: No such file or directory"
