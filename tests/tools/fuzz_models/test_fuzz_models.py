"""A few mutated model files; `make fuzz-models` tries any number of them."""

from __future__ import annotations

import random
from pathlib import Path

from cohort.inspection.job import OPENED
from tools.fuzz_models.__main__ import (
    CRASHED,
    OUT_OF_CPU_TIME,
    OUT_OF_MEMORY,
    REFUSED,
    Opening,
)
from tools.fuzz_models.mutations import corpus, mutate

COUNT = 60


def test_each_mutation_has_an_outcome(tmp_path: Path) -> None:
    """Whatever a file does to the child, the next one is tried, and each one ends."""
    files, opening = corpus(), Opening()
    outcomes = set()
    for number in range(COUNT):
        rng = random.Random(f"slice-{number}")
        (tmp_path / "model.onnx").write_bytes(mutate(rng.choice(files), rng)[1])
        outcomes.add(opening.try_file(tmp_path / "model.onnx").word)
    opening.close()
    assert outcomes >= {OPENED, REFUSED}
    assert outcomes <= {OPENED, REFUSED, OUT_OF_MEMORY, CRASHED, OUT_OF_CPU_TIME}


def test_mutations_are_the_same_each_time() -> None:
    """A number of a seed is enough to see an outcome again."""
    content = corpus()[0]
    assert mutate(content, random.Random("7")) == mutate(content, random.Random("7"))
