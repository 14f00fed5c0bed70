"""Engines of language models, where packages are missing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from cohort.errors import LoadFailed
from cohort.generative.factory import GenerativeEngines
from cohort.onnx_engine import VersionOpener
from cohort.registry import Source
from cohort.repository import ModelConfig
from cohort.session import CancellationToken


def test_each_model_names_the_missing_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A load names the missing package, even while another load's import is failing."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None))
    source = Source(tmp_path / "genai_config.json", "", ModelConfig())
    for halted in (False, True):
        monkeypatch.delitem(sys.modules, "cohort.generative.opening", raising=False)
        if halted:
            name = "cohort.generative.opening"
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        with pytest.raises(LoadFailed, match=r"\(llguidance\): install .* cohort\[generative\]"):
            engines.open(source, CancellationToken())


def test_a_package_that_cannot_be_imported_is_a_failed_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reason of the import is the reason of the load."""
    name = "cohort.generative.opening"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None))
    source = Source(tmp_path / "genai_config.json", "", ModelConfig())
    with pytest.raises(LoadFailed, match="cannot import name"):
        engines.open(source, CancellationToken())
