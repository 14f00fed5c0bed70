"""Descriptions of loaded models, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from time import monotonic
from typing import Any

from cohort.batching import BatchPolicy, Outputs
from cohort.codec.labels import labellers_of
from cohort.profiling import ProfileResult, row_advice
from cohort.registry import (
    NOT_FAILED,
    BatchingDescription,
    Catalog,
    Engine,
    EngineDescription,
    ModelEntry,
    PipelineDescription,
    State,
    TextDescription,
    VersionEntry,
)
from cohort.repository import ModelConfig, Published
from cohort.row_independence import RowVerdict
from cohort.scheduling import INLINE_SECONDS
from cohort.tensors import Arrays, TensorSpec

Description = dict[str, Any]
"""Plain values that can be written as JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A READY version with the properties that callers need.

    model, version: The model's name and the version's number.
    default: True if it answers requests that name no version.
    inputs, outputs: The specs, in the model's order.
    example: Inputs that it accepts; None if no example is known.
    labels: The names of its classes, for outputs without their own; default: empty.
    answer: Its outputs for the example; default None: not known, or not short.
    made_up: True if the example has synthetic numbers; default False.
    """

    model: str
    version: str
    default: bool
    inputs: Sequence[TensorSpec]
    optional_inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    example: Arrays | None
    labels: Sequence[str] = ()
    answer: Outputs | None = None
    made_up: bool = False


def list_served(catalog: Catalog) -> Iterator[ServedModel]:
    """Yield every READY version in the catalog."""
    for name, model in catalog.items():
        for entry in model.versions.values():
            if entry.state is State.READY and (engine := entry.engine) is not None:
                yield ServedModel(
                    name,
                    str(entry.number),
                    entry is model.default,
                    engine.inputs,
                    engine.optional_inputs,
                    engine.outputs,
                    engine.example,
                    class_names(engine),
                    engine.example_outputs,
                    engine.describe().made_up,
                )


def class_names(engine: Engine) -> Sequence[str]:
    """Return the names of an engine's classes by index; empty if it has no names."""
    tensors = engine.by_tensors
    return () if tensors is None else tensors.labels


def describe_states(model: ModelEntry) -> dict[str, str]:
    """Return the state of each version of a model."""
    return {str(number): entry.state.value for number, entry in model.versions.items()}


def describe_failures(catalog: Catalog) -> list[str]:
    """Return versions that could not be loaded, with the reason, and if previous files serve."""
    return [
        f"{model.name}/{entry.number}: "
        + (
            "serves its previous files; those on disk cannot be loaded"
            if entry.outdated
            else "failed"
        )
        + f": {entry.reason}"
        for model in catalog.values()
        for entry in model.versions.values()
        if entry.state in {State.READY, State.UNAVAILABLE} and entry.reason not in NOT_FAILED
    ]


def describe_mixed(catalog: Catalog) -> list[str]:
    """Return versions whose requests have changed each other's answers, with the evidence."""
    return [
        f"{model.name}/{entry.number}: its requests are no longer batched: {entry.mixed} "
        "(see CohortRowsMixed in the runbook)"
        for model in catalog.values()
        for entry in model.versions.values()
        if entry.mixed
    ]


def describe_held_back(catalog: Catalog) -> dict[str, str]:
    """Return why only requests that name a version reach it, by model and version."""
    return {
        f"{model.name}/{number}": reason
        for model in catalog.values()
        for number, reason in model.held_back.items()
        if number in model.versions
    }


def describe_model(entry: ModelEntry) -> Description:
    """Describe a model: its name, default version, and the states of its versions with reasons."""
    default = entry.default
    return {
        "name": entry.name,
        "default_version": None if default is None else str(default.number),
        "versions": [_describe_state(one, entry) for one in entry.versions.values()],
    }


def _describe_state(entry: VersionEntry, model: ModelEntry) -> Description:
    return {
        "version": str(entry.number),
        "state": entry.state.value,
        "reason": entry.reason,
        "retry_in_seconds": _retry_in(entry),
        "held_back": model.held_back.get(entry.number, ""),
        "objective_ms": (entry.source.config or ModelConfig()).objective_ms,
    }


def describe_version(entry: VersionEntry, model: ModelEntry) -> Description:
    """Describe a version: its state and, if it is loaded, specs, files, providers and profile.

    `held_back` is the reason why only rollouts and requests that name the version reach it.
    `retry_in_seconds` is the time until a failed version is loaded again; null: when its files
    change. `memory_bytes` is the growth of the process's memory while it was loaded, together with
    other loads at the same time; null if not known. `objective_ms`, null without one, `timeout_ms`
    and `max_queue_delay_ms` are in milliseconds.
    """
    result = _describe_state(entry, model)
    engine = entry.engine
    if engine is None:
        return result
    description = engine.describe()
    metadata, placement = description.metadata, description.placement
    result |= {
        "inputs": _describe_inputs(engine.inputs, description, entry.source.config),
        "optional_inputs": _specs(engine.optional_inputs),
        "outputs": _describe_outputs(engine.outputs, class_names(engine)),
        "files": {name: {"sha256": digest} for name, digest in description.files.items()},
        "published": _describe_published(description.published),
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
            "fell_back": placement.fell_back,
            "device": description.device,
            "fallbacks": [
                {"provider": one.provider, "reason": one.reason} for one in placement.fallbacks
            ],
            "nodes": dict(placement.nodes),
        },
        "memory_bytes": description.memory_bytes or None,
        "timeout_ms": round(engine.timeout * 1000, 3),
    }
    if (pipeline := description.pipeline) is not None:
        result["pipeline"] = _describe_pipeline(pipeline)
    if (text := description.text) is not None:
        result["language_model"] = describe_text(text)
    if (batching := description.batching) is not None:
        result["batching"] = _describe_batching(batching, entry)
        result["profile"] = describe_profile(
            batching.profile, description.device, batching.unpredictable
        )
    return result


def describe_text(text: TextDescription) -> Description:
    """Describe a language model: its context in tokens, and the maximum bytes of its cache."""
    return {
        "context_length": text.context_length,
        "chat": text.chats,
        "cache_bytes": text.cache_bytes or None,
    }


def _describe_pipeline(pipeline: PipelineDescription) -> Description:
    """Describe the steps of a pipeline, in the order of their needs, and its outputs' sources."""
    return {
        "steps": [
            {
                "name": step.name,
                "model": step.model,
                "version": None if step.version is None else str(step.version),
                "serving": None if step.serving is None else str(step.serving),
                "inputs": {name: list(one) for name, one in step.inputs.items()},
                "when": step.when,
                **({"each": list(step.each)} if step.each else {}),
            }
            for step in pipeline.steps
        ],
        "outputs": {name: list(one) for name, one in pipeline.outputs.items()},
        "conditions": pipeline.conditions or None,
        "row_by_row": list(pipeline.row_by_row),
    }


def _describe_batching(batching: BatchingDescription, entry: VersionEntry) -> Description:
    policy = batching.policy
    return {
        "on": policy.batches,
        "reason": entry.batching_off,
        "padding_off": entry.padding_off,
        "rows": describe_rows(batching.rows),
        **describe_exactness(batching.profile, policy, batching.rows),
        "max_batch_size": policy.max_batch_size,
        "max_queue_size": policy.max_queue_size,
        "max_queue_seconds": policy.max_queue_seconds,
        "max_queue_delay_ms": policy.max_queue_delay_ms,
    }


def describe_exactness(found: ProfileResult, policy: BatchPolicy, rows: RowVerdict) -> Description:
    """Return whether batched answers equal single answers bit by bit, as tested, or why not."""
    reason = found.why_not_exact(policy, rows)
    return {"exact": not reason, "exact_reason": reason}


def describe_rows(verdict: RowVerdict) -> Description:
    """Describe the analysis of rows: whether they are independent, and along which axes.

    `node` is the node that mixes rows; `node_path` is its place in the graph, as in `NodePlace`;
    empty for no node. An axis is null if a run has the input or output once for all of its
    requests. `requests` are those for which independence is proven, if it is not proven for all.
    Each has the shape of every input for one row, and the values of inputs that a run has once.
    `other_requests` are the reasons why it is not proven for other examples.
    """
    places = verdict.outputs.items()
    return {
        "verdict": verdict.kind.value,
        "reason": "" if verdict.independent else str(verdict),
        "to_batch": "" if verdict.independent else row_advice(verdict),
        "node": verdict.node,
        "node_name": verdict.place.name,
        "node_path": list(verdict.place.path),
        "input_axes": dict(verdict.inputs) if verdict.independent else {},
        "output_axes": {name: None if one is None else one.axis for name, one in places},
        "requests": [
            {"shapes": dict(one.shapes), "values": dict(one.values)} for one in verdict.requests
        ],
        "other_requests": list(verdict.other_requests),
    }


def _describe_published(published: Published) -> Description | None:
    """Describe a version's manifest and its signer; None if it has no manifest."""
    manifest = published.manifest
    if manifest is None:
        return None
    return {
        "signed_by": published.signer or None,
        "source": None if manifest.source is None else asdict(manifest.source),
        "steps": [one.what or one.step for one in manifest.steps],
        "difference": None if manifest.difference is None else asdict(manifest.difference),
        "accuracy": None if manifest.accuracy is None else asdict(manifest.accuracy),
        "rows": None if manifest.rows is None else asdict(manifest.rows),
        "examples": len(manifest.examples) + len(manifest.texts),
    }


def _retry_in(entry: VersionEntry) -> float | None:
    return None if entry.retry_at is None else round(max(0.0, entry.retry_at - monotonic()), 1)


def describe_profile(found: ProfileResult, device: str, unpredictable: str = "") -> Description:
    """Describe a profile for a version's description and `cohort profile`. Times are in seconds.

    device: The device that runs use: only on "cpu" may runs execute on the event loop.
    unpredictable: Why the duration of a run cannot be estimated, so that no run uses the loop;
        default "".
    """
    seconds = found.profile.seconds
    inline = [rows for rows, taken in seconds.items() if taken <= INLINE_SECONDS]
    return {
        "seconds_by_rows": {str(rows): taken for rows, taken in seconds.items()},
        "chosen_rows": found.profile.max_batch_size,
        "filled_rows": found.profile.filled_rows,
        "change_seconds": found.profile.change_seconds,
        "inline_up_to_rows": 0 if device != "cpu" or unpredictable else max(inline, default=0),
        "unpredictable": unpredictable,
        "measured": found.measured,
        "kept": found.kept,
        "complete": found.complete,
        "doubt": found.stale_reason,
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
            **({"part_of": spec.part_of} if spec.part_of else {}),
            **({"classes": list(spec.classes)} if spec.classes else {}),
            **({"missing": spec.missing} if _is_plain(spec.missing) else {}),
        }
        for spec in specs
    ]


def _is_plain(missing: float | str | None) -> bool:
    """Return True if a missing value has a placeholder that JSON can write."""
    return missing is not None and (isinstance(missing, str) or isfinite(missing))


def _describe_inputs(
    specs: Sequence[TensorSpec], description: EngineDescription, config: ModelConfig | None
) -> list[Description]:
    """Describe inputs. If callers do not send an array, add the accepted data and processing."""
    described = _specs(specs)
    for one, spec in zip(described, specs, strict=True):
        if (about := description.processing.get(spec.name)) is not None:
            one["processing"] = about
        wanted = None if config is None else config.inputs.get(spec.name)
        if wanted is not None and (takes := wanted.takes):
            one["takes"] = takes
        elif spec.files:
            one["takes"] = "file"
    return described


def _describe_outputs(specs: Sequence[TensorSpec], labels: Sequence[str]) -> list[Description]:
    """Describe outputs with the names of their classes: `always`, or if `top` requests them."""
    described = _specs(specs)
    for one, output in zip(described, specs, strict=True):
        if (about := output.detections) is not None:
            one["detections"] = {
                "scores": about.scores,
                "classes": about.classes,
                "unit": about.unit,
                "size": None if about.size is None else list(about.size),
                "threshold": about.threshold,
                "top": about.top,
                "labels": list(about.labels),
            }
    for one, labeller in zip(described, labellers_of(specs, labels), strict=True):
        if labeller is None:
            continue
        spec, tensor = labeller.spec, labeller.tensor
        one.setdefault("classes", list(labeller.labels))
        one["labels"] = {
            "always": spec.named is not None,
            "output": tensor.name,
            "shape": None if tensor.shape is None else list(tensor.shape),
            "threshold": spec.threshold,
        }
    return described
