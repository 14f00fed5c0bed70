"""Report of an experiment that contradicts the proof from the graph, which is a bug."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import structlog

from cohort.session import Opener
from cohort.tensors import Arrays, held_bytes

log = structlog.get_logger("cohort.profiling")

MAX_REPORTED_BYTES = 64 << 20
"""Size limit of kept requests; larger ones can be regenerated from the model alone."""


def report_contradiction(opener: Opener, requests: Sequence[Arrays], reason: str) -> None:
    """Log that requests influence each other although the graph proves that they do not.

    The requests are kept under COHORT_CACHE, as a .npz of the arrays `<number>/<input>`. An OSError
    while they are written is ignored.
    """
    file = ""
    with suppress(OSError):
        file = _keep(opener, requests)
    log.error(
        "rows influence each other although the graph proves that they do not: please report it",
        model=opener.model_name,
        version=opener.version_name,
        reason=reason,
        proof=str(opener.rows),
        requests=file,
    )


def _keep(opener: Opener, requests: Sequence[Arrays]) -> str:
    """Write the requests to a file and return its path, or "" if they are not kept."""
    arrays = {
        f"{number}/{name}": array.astype(str) if array.dtype.hasobject else array
        for number, request in enumerate(requests)
        for name, array in request.items()
    }
    if opener.cache is None or sum(map(held_bytes, arrays.values())) > MAX_REPORTED_BYTES:
        return ""
    path = opener.cache / "contradictions" / f"{opener.digest()[:32]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(f"{path}.writing")
    with beside.open("wb") as written:
        np.savez_compressed(written, **arrays)  # type: ignore[arg-type]
    beside.replace(path)
    return str(path)
