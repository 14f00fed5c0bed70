"""Files that are written next to a converted model: its tokenizer, its labels, and a config."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.repository import load_model_config
from cohort_prepare.beside import check_beside, write_beside
from cohort_prepare.failures import Misused
from cohort_prepare.source import SourceExport

EXPORT = SourceExport(
    "BertModel",
    files=["tokenizer.json"],
    config={"inputs": {"text": {"tokenizer": "tokenizer.json"}}},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files that an adapter has written."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made/tokenizer.json").write_text("{}")
    return tmp_path / "made"


def test_they_lie_beside_the_model_in_a_folder_that_is_made(folder: Path) -> None:
    """They keep their names, and the config has the model's name."""
    out = folder.parent / "new/folder/mood.onnx"
    written = write_beside(EXPORT, folder, out)
    assert [one.name for one in written] == ["tokenizer.json", "mood.config.yaml"]
    assert out.with_name("tokenizer.json").read_text() == "{}"


def test_in_a_models_folder_the_config_is_where_a_server_reads_it(folder: Path) -> None:
    """Unless there is one, which stays as it is."""
    model = folder.parent / "models/mood"
    write_beside(EXPORT, folder, model / "1/model.onnx")
    assert load_model_config(model).inputs["text"].tokenizer == "tokenizer.json"
    (model / "config.yaml").write_text("timeout_ms: 5\n")
    write_beside(EXPORT, folder, model / "2/model.onnx")
    assert load_model_config(model).timeout_ms == 5
    assert (model / "2/model.config.yaml").is_file()


def test_another_models_tokenizer_is_not_replaced(folder: Path) -> None:
    """The same model's tokenizer is replaced, as the model is."""
    out = folder.parent / "mood.onnx"
    out.with_name("tokenizer.json").write_text("another")
    with pytest.raises(Misused, match="may belong to another model"):
        check_beside(EXPORT, out)
    out.write_bytes(b"")
    check_beside(EXPORT, out)
