"""An experiment that contradicts the proof from the graph: a bug, reported with its inputs."""

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
"""Of the requests; larger ones can be made again from the model alone."""


def report_contradiction(opener: Opener, requests: Sequence[Arrays], reason: str) -> None:
    """Say in the log that requests influence each other although that was proven not to be.

    The requests are kept under COHORT_CACHE, as a .npz of the arrays `<number>/<input>`. Raises
    nothing.
    """
    folder = opener.origin.parent
    file = ""
    with suppress(OSError):
        file = _keep(opener, requests)
    log.error(
        "rows influence each other although the graph proves that they do not: please report it",
        model=folder.parent.name,
        version=folder.name,
        reason=reason,
        proof=str(opener.rows),
        requests=file,
    )


def _keep(opener: Opener, requests: Sequence[Arrays]) -> str:
    """The file that the requests are kept in; "" where they are not."""
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
