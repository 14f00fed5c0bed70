"""The process that looks at a model: `python -m cohort_prepare.overview.process JOB ANSWER`.

A model may be made to take any time and memory, or to crash a library; that ends this process.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cohort.errors import LoadFailed
from cohort.inspection import InspectionLimits
from cohort.session import Opener, model_rules


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """What the job asks for, or `error`."""
    path = Path(job["path"])
    rules = model_rules(
        job["max_megabytes"], job["max_nodes"], tuple(map(Path, job["custom_ops"])), ()
    )
    opener = Opener(path, rules=rules)
    try:
        opener.read()
        _limit(job, sum(file.stat().st_size for file in opener.files()))
    except (LoadFailed, OSError) as error:
        return {"error": str(error)}
    if job["task"] == "read":
        from cohort_prepare.overview.structure import structure_of

        try:
            return {"found": asdict(structure_of(path, job))}
        except (LoadFailed, OSError) as error:
            return {"error": str(error)}
    from cohort_prepare.overview.behavior import observe

    return {"found": asdict(observe(path, rules))}


def _limit(job: Mapping[str, Any], size: int) -> None:
    """Have the system end this process where the model takes more than its share."""
    limits = InspectionLimits(job["seconds"], job["megabytes"])
    seconds = limits.seconds + (size >> 23)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limits.seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            memory = limits.memory + size * CONTENT_COPIES
            resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.RLIM_INFINITY))


CONTENT_COPIES = 4
"""How often a model's content may be in memory."""


def do_one(job_file: str, answer_file: str) -> None:
    """Do the job in one file, and write the answer into the other."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    try:
        found = answer(job)
    except MemoryError:
        found = {"error": "it takes more memory than a model may (COHORT_INSPECTION_MB)"}
    Path(answer_file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    do_one(*sys.argv[1:])
