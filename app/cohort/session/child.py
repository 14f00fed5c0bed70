"""Jobs of a child process that runs a model: `child_runs` starts it with `cohort.system.jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.errors import LoadFailed
from cohort.session.opening import Opener, SessionOptions
from cohort.session.providers import Provider
from cohort.session.rules import ModelRules
from cohort.session.running import Session
from cohort.system.array_file import MAX_BYTES, ArrayFile


class _Child:
    session: Session
    incoming: ArrayFile
    outgoing: ArrayFile
    most_bytes: int


def load(
    path: str,
    digests: Mapping[str, str],
    chain: Sequence[Sequence[Any]],
    policy: Any,
    options: Mapping[str, Any],
    memory_limit_mb: int | None,
    max_output_bytes: float,
    custom_ops: Sequence[str],
    max_nodes: int,
    exclusive_threads: int,
    incoming: str,
    outgoing: str,
    most_bytes: int,
) -> None:
    """Open the model if its files have these digests; other arguments are those of an `Opener`."""
    libraries = tuple(options["custom_op_libraries"])
    opener = Opener(
        Path(path),
        chain=[Provider(name, settings) for name, settings in chain],
        policy=policy,
        options=SessionOptions(**{**options, "custom_op_libraries": libraries}),
        memory_limit_mb=memory_limit_mb,
        max_output_bytes=max_output_bytes,
        rules=ModelRules(max_nodes=max_nodes, custom_ops=tuple(map(Path, custom_ops))),
    )
    if opener.file_digests() != digests:
        raise LoadFailed("its files changed while it was served")
    _Child.session = opener.open(exclusive_threads)
    _Child.incoming, _Child.outgoing = ArrayFile(incoming), ArrayFile(outgoing)
    _Child.most_bytes = most_bytes


def run(places: list[list[Any]]) -> list[Any]:
    """Run the model, and return the places of its outputs."""
    session = _Child.session
    outputs = session.run(_Child.incoming.read(places, MAX_BYTES))
    named = {
        spec.name: array
        for spec, array in zip(session.outputs, outputs, strict=True)
        if spec.transportable
    }
    return list(_Child.outgoing.write(named, _Child.most_bytes))
