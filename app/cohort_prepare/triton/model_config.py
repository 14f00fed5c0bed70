"""Convert Triton's file for an ONNX model to a config.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.errors import quoted
from cohort_prepare.failures import Misused
from cohort_prepare.triton.reading import Fields

BACKENDS = frozenset({"onnxruntime", "onnxruntime_onnx"})

LEVELS = {"-1": "basic", "1": "extended", "2": "none"}
"""Graph optimization levels by the numbers of the ONNX Runtime backend."""

CACHE_MB = 64
"""Size of a response cache: Triton sets one for all models on its command line."""


def is_onnx(fields: Fields) -> bool:
    """Return True for the ONNX Runtime backend, and for an ONNX file without a named backend."""
    named = fields.text("backend") or fields.text("platform")
    return named in BACKENDS or (not named and _file(fields).endswith(".onnx"))


def _file(fields: Fields) -> str:
    return fields.text("default_model_filename") or "model.onnx"


def model_config(fields: Fields, file: str) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a config.yaml, and notes. Raises Misused for other backends."""
    if not is_onnx(fields):
        named = fields.text("backend") or fields.text("platform") or _file(fields)
        raise Misused(
            f"{file} has the backend {quoted(named)}, but Cohort serves ONNX: export the model "
            "(cohort convert). Code around a model becomes a transform: docs/guide/transform.md"
        )
    notes: list[str] = []
    config: dict[str, Any] = {
        "providers": _providers(fields, notes),
        "versions": _versions(fields.message("version_policy")),
        "session": _session(fields, notes),
        "batching": _batching(fields),
        "timeout_ms": _timeout(fields, notes),
        "warm_up": _warm_up(fields),
        "outputs": _labels(fields, notes),
        **_sequences(fields.message("sequence_batching")),
    }
    if fields.message("response_cache").truth("enable"):
        config["cache"] = {"max_mb": CACHE_MB}
        notes.append(
            f"cache: {{max_mb: {CACHE_MB}}} is a guess: Triton has one size for all models"
        )
    if _file(fields) != "model.onnx":
        notes.append(f"rename {quoted(_file(fields))} to model.onnx in each version's folder")
    for one in fields.messages("input"):
        one.text("name"), one.numbers("dims")
    return {key: value for key, value in config.items() if value}, notes


def _versions(policy: Fields) -> object:
    if "all" in policy:
        policy.message("all")
        return "all"
    if numbers := policy.message("specific").numbers("versions"):
        return numbers
    latest = policy.message("latest").number("num_versions")
    return {"latest": latest} if latest > 1 else None


def _batching(fields: Fields) -> dict[str, Any]:
    dynamic = fields.message("dynamic_batching")
    queue = dynamic.message("default_queue_policy")
    found: dict[str, Any] = {}
    if "max_batch_size" in fields:
        found["max_batch_size"] = max(fields.number("max_batch_size"), 1)
    if delay := dynamic.number("max_queue_delay_microseconds"):
        found["max_queue_delay_ms"] = delay / 1000
    if size := queue.number("max_queue_size"):
        found["max_queue_size"] = size
    return found


def _timeout(fields: Fields, notes: list[str]) -> float | None:
    queue = fields.message("dynamic_batching").message("default_queue_policy")
    microseconds = queue.number("default_timeout_microseconds")
    if not microseconds:
        return None
    notes.append("timeout_ms limits the whole request; Triton's timeout limits its wait only")
    return microseconds / 1000


def _warm_up(fields: Fields) -> dict[str, Any] | None:
    sizes = {max(one.number("batch_size"), 1) for one in fields.messages("model_warmup")}
    return {"rows": sorted(sizes)} if sizes else None


def _labels(fields: Fields, notes: list[str]) -> dict[str, Any]:
    found = {}
    for one in fields.messages("output"):
        one.numbers("dims")
        if name := one.text("label_filename"):
            found[one.text("name")] = {"labels": name}
            notes.append(f"copy {quoted(name)}, the labels, to each version's folder")
    return found


def _session(fields: Fields, notes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    level = fields.message("optimization").message("graph").word("level")
    if level in LEVELS:
        found["graph_optimization"] = LEVELS[level]
    for key, value in fields.pairs("parameters").items():
        text = value if isinstance(value, str) else value.text("string_value")
        if key == "intra_op_thread_count" and text.isascii() and text.isdigit() and len(text) < 6:
            found["intra_op_threads"] = int(text)
        else:
            notes.append(
                f"the parameter {quoted(key)} is not converted: set ONNX Runtime's options "
                "under session or providers (docs/reference/configuration.md)"
            )
    if libraries := fields.message("model_operations").texts("op_library_filename"):
        found["custom_op_libraries"] = libraries
        notes.append("copy the operator libraries to a folder listed in COHORT_CUSTOM_OPS")
    return found


def _providers(fields: Fields, notes: list[str]) -> list[Any] | None:
    """Return the chain of execution providers; None for the machine's default."""
    chain: list[Any] = []
    accelerators = fields.message("optimization").message("execution_accelerators")
    kinds = {one.word("kind") for one in fields.messages("instance_group")} - {""}
    gpus = {number for one in fields.messages("instance_group") for number in one.numbers("gpus")}
    for one in accelerators.messages("gpu_execution_accelerator"):
        name = one.text("name")
        if name == "tensorrt":
            options = _tensorrt(one, notes)
            chain.append({"tensorrt": options} if options else "tensorrt")
            kinds.add("KIND_GPU")
        elif name not in {"auto_io_binding", "gpu_io"}:
            notes.append(f"accelerator {quoted(name)} is not converted: {_SEE_PROVIDERS}")
    cpu: list[Any] = []
    for one in accelerators.messages("cpu_execution_accelerator"):
        if one.text("name") == "openvino":
            cpu.append("openvino")
            notes += [
                f"openvino's {quoted(key)} is not converted: {_SEE_PROVIDERS}"
                for key in one.pairs("parameters")
            ]
        else:
            notes.append(
                f"accelerator {quoted(one.text('name'))} is not converted: {_SEE_PROVIDERS}"
            )
    if "KIND_GPU" in kinds:
        device = min(gpus) if gpus else 0
        chain.append({"cuda": {"device_id": device}} if device else "cuda")
        if len(gpus) > 1:
            notes.append(
                f"of the GPUs {', '.join(map(str, sorted(gpus)))} only {device} is used: start a "
                "server for each with CUDA_VISIBLE_DEVICES, behind a load balancer"
            )
        return [*chain, *cpu, "cpu"]
    return [*cpu, "cpu"] if cpu or "KIND_CPU" in kinds else None


_SEE_PROVIDERS = "set execution providers and their options under providers"


def _tensorrt(accelerator: Fields, notes: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in accelerator.pairs("parameters").items():
        text = str(value) if isinstance(value, str) else ""
        if key == "precision_mode" and text in {"FP16", "INT8", "FP32"}:
            if text != "FP32":
                options[f"trt_{text.lower()}_enable"] = True
        elif key == "max_workspace_size_bytes" and text.isascii() and text.isdigit():
            options["trt_max_workspace_size"] = int(text[:19])
        else:
            notes.append(f"tensorrt's {quoted(key)} is not converted: {_SEE_PROVIDERS}")
    return options


def _sequences(batching: Fields) -> Mapping[str, Any]:
    state = {one.text("input_name"): one.text("output_name") for one in batching.messages("state")}
    for one in batching.messages("state"):
        one.word("data_type"), one.numbers("dims")
        one.truth("use_same_buffer_for_input_output"), one.truth("use_growable_memory")
    found: dict[str, Any] = {"state": state}
    if state and (idle := batching.number("max_sequence_idle_microseconds")):
        found["sequences"] = {"idle_seconds": idle / 1e6}
    return found
