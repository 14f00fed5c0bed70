"""Jobs that inspect a model, `describe` and `observe_opening`, each in a separate process.

A model may use too much time or memory, or crash a library; that ends only the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cohort.inspection import InspectionLimits
from cohort.session import ModelRules, Opener, model_rules
from cohort.system.confinement import limit_process

CONTENT_COPIES = 4
"""Copies of a model's content that may be in memory."""


def describe(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's contents, as `ModelStructure`. Raises LoadFailed and OSError."""
    from cohort_prepare.overview.structure import structure_of

    path, _ = _check(job)
    return asdict(structure_of(path, job))


def observe_opening(job: Mapping[str, Any]) -> dict[str, Any]:
    """Open the model in this process, and return its `Behavior` as a dict.

    Raises LoadFailed and OSError.
    """
    from cohort_prepare.overview.behavior import observe

    return asdict(observe(*_check(job)))


def _check(job: Mapping[str, Any]) -> tuple[Path, ModelRules]:
    """Read the model, and limit this process according to its size."""
    path = Path(job["path"])
    custom_ops = tuple(map(Path, job["custom_ops"]))
    rules = model_rules(job["max_megabytes"], job["max_nodes"], custom_ops, ())
    opener = Opener(path, rules=rules)
    opener.read()
    if job["seconds"]:
        size = sum(file.stat().st_size for file in opener.files())
        limits = InspectionLimits(job["seconds"], job["megabytes"])
        limit_process(limits.seconds + (size >> 23), limits.memory + size * CONTENT_COPIES)
    return path, rules
