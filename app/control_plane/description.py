"""What is loaded in plain values, for people and for other servers' clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.profiling import ProfileResult
from app.registry import Catalog, ModelEntry, State, VersionEntry
from app.scheduling import INLINE_SECONDS
from app.tensors import Arrays, TensorSpec

Description = dict[str, Any]
"""Plain values, ready to be written as JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A READY version as callers see it. `example` is inputs it takes, None where none are known.

    `default` is whether it answers where no version is asked for.
    """

    model: str
    version: str
    default: bool
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    example: Arrays | None


def served_by(catalog: Catalog) -> Iterator[ServedModel]:
    for name, model in catalog.items():
        for entry in model.versions.values():
            if entry.state is State.READY and (engine := entry.engine) is not None:
                yield ServedModel(
                    name,
                    str(entry.number),
                    entry is model.default,
                    engine.inputs,
                    engine.outputs,
                    engine.example,
                )


def states(model: ModelEntry) -> dict[str, str]:
    return {str(number): entry.state.value for number, entry in model.versions.items()}


def describe_model(entry: ModelEntry) -> Description:
    default = entry.default
    return {
        "name": entry.name,
        "default_version": None if default is None else str(default.number),
        "versions": [
            {"version": str(one.number), "state": one.state.value, "reason": one.reason}
            for one in entry.versions.values()
        ],
    }


def describe_version(entry: VersionEntry) -> Description:
    described: Description = {
        "version": str(entry.number),
        "state": entry.state.value,
        "reason": entry.reason,
    }
    engine = entry.engine
    if engine is None:
        return described
    description = engine.describe()
    metadata, placement, policy = description.metadata, description.placement, description.policy
    described |= {
        "inputs": _specs(engine.inputs),
        "outputs": _specs(engine.outputs),
        "metadata": {
            "producer": metadata.producer,
            "producer_version": metadata.producer_version,
            "description": metadata.description,
            "domain": metadata.domain,
            "graph_name": metadata.graph_name,
            "ir_version": metadata.ir_version,
            "opsets": dict(metadata.opsets),
            "properties": dict(metadata.properties),
        },
        "providers": {
            "wanted": list(placement.wanted),
            "active": placement.active,
            "device": description.device,
            "fallbacks": [
                {"provider": one.provider, "reason": one.reason} for one in placement.fallbacks
            ],
            "nodes": dict(placement.nodes),
        },
        "batching": {
            "on": policy.batches,
            "reason": entry.batching_off,
            "padding_off": entry.padding_off,
            "max_batch_size": policy.max_batch_size,
            "max_queue_size": policy.max_queue_size,
            "max_queue_delay_ms": policy.max_queue_delay_ms,
        },
        "profile": describe_profile(description.profile, description.device),
        "timeout_ms": round(engine.timeout * 1000, 3),
    }
    return described


def describe_profile(found: ProfileResult, device: str) -> Description:
    """What was found out at load: in the description of a version, and in `cohort profile`."""
    seconds = found.profile.seconds
    inline = [rows for rows, taken in seconds.items() if taken <= INLINE_SECONDS]
    return {
        "seconds_by_rows": {str(rows): taken for rows, taken in seconds.items()},
        "chosen_rows": found.profile.max_batch_size,
        "inline_up_to_rows": max(inline, default=0) if device == "cpu" else 0,
        "measured": found.measured,
        "kept": found.kept,
        "threads": asdict(found.threads),
        "concurrency": [asdict(one) for one in found.concurrency],
    }


def _specs(specs: Sequence[TensorSpec]) -> list[Description]:
    return [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": None if spec.shape is None else list(spec.shape),
            "transportable": spec.transportable,
        }
        for spec in specs
    ]
