"""Ids of texts as transformers makes them, and a classifier of a folder served by its sentences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort.processing.steps import StepContext
from cohort.processing.texts import TextStep
from cohort.repository import InputConfig
from cohort.tensors import TensorSpec
from tests.e2e.processes import ROOT

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="frameworks are fetched; make converters runs it"
)

SOURCES = Path(__file__).parent / "sources"

NAMES = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the outputs of transformers for the texts, by tokenizers of each kind."""
    from cohort_prepare.environments import find_environment
    from cohort_prepare.frameworks import FRAMEWORKS

    folder = tmp_path_factory.mktemp("texts")
    sys_path = f"import sys; sys.path[:0] = [{str(SOURCES)!r}, {str(ROOT / 'app')!r}]; "
    code = sys_path + "import huggingface_texts; huggingface_texts.save()"
    command = find_environment(FRAMEWORKS["huggingface"]).command
    subprocess.run([*command, "-c", code], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_ids_are_those_of_transformers(folder: Path, kind: str) -> None:
    """1,000 texts and as many pairs match: emoji, CJK, empty ones, and some of 100 KB."""
    sys.path.insert(0, str(SOURCES))
    texts = import_module("huggingface_texts").texts

    inputs = {name: TensorSpec(name, "INT64", ("N", "length")) for name in NAMES}
    given: list[str] = texts()
    answers: list[dict[str, Any]] = json.loads((folder / kind / "answers.json").read_text())
    steps = []
    for pairs in (False, True):
        config = InputConfig(tokenizer="tokenizer.json", pairs=pairs)
        steps.append(TextStep(StepContext("text", config, inputs, folder / kind / "made")))
    compared = 0
    for number, answer in enumerate(answers):
        first, second = number // 2 * 50, number % 2
        some: list[Any] = given[first : first + 50]
        values = np.array([[one, one[:500][::-1]] for one in some] if second else some, np.object_)
        made = steps[second].prepare(values, lambda: None)
        for name in NAMES:
            np.testing.assert_array_equal(made[name], answer[name], err_msg=f"{name} {first}")
        compared += len(some)
    assert compared == 2000
