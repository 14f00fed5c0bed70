"""The folder that a function saves, as the source of a Hugging Face model."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import Reference
from cohort_prepare.frameworks.huggingface_models import HuggingfaceModels

SAVING = """
from pathlib import Path

def saved():
    Path("mood").mkdir()
    Path("mood/config.json").write_text("{}")
    return "mood"

def model():
    return 7
"""


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("saved", r"^mood/config\.json is missing or has no architecture"),
        ("model", "huggingface_saving:model returns int, not a folder: call save_pretrain"),
    ],
)
def test_a_function_returns_the_folder_that_it_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, says: str
) -> None:
    """The folder is read; any other result is refused, and the error states the requirement."""
    (tmp_path / "huggingface_saving.py").write_text(SAVING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Misused, match=says):
        HuggingfaceModels().load(Reference(f"huggingface_saving:{function}"))
