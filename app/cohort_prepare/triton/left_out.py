"""What of Triton's fields has no counterpart, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.errors import quoted

NOTHING_LOST = frozenset(
    {
        *("name", "platform", "backend", "runtime", "default_model_filename", "metric_tags"),
        *("input", "output", "optimization.input_pinned_memory", "model_metrics"),
        *("optimization.output_pinned_memory", "optimization.cuda", "optimization.eager_batching"),
        *("optimization.gather_kernel_buffer_threshold", "instance_group.name"),
    }
)
"""Fields that stand for themselves in the model's file or folder, or for nothing here."""

REASONS: Mapping[str, str] = {
    "dynamic_batching.preferred_batch_size": "the best size is measured when the model loads",
    "dynamic_batching.preserve_ordering": "match answers with their requests by id",
    "dynamic_batching.priority_levels": (
        "give callers' keys a priority: docs/operations/security.md"
    ),
    "dynamic_batching.default_priority_level": "give callers' keys a priority: "
    "docs/operations/security.md",
    "dynamic_batching.priority_queue_policy": "there is one queue for all priorities",
    "dynamic_batching.default_queue_policy.timeout_action": "requests that are late are answered "
    "by an error: DEADLINE_EXCEEDED, 504",
    "dynamic_batching.default_queue_policy.allow_timeout_override": "callers may always give less "
    "time than timeout_ms, and never more",
    "instance_group.count": "one session takes as many runs at once as there are cores, or slots "
    "of the GPU",
    "instance_group.rate_limiter": "the scheduler bounds the runs of all models together",
    "instance_group.profile": "TensorRT's profiles are made by its execution provider: "
    "providers: [{tensorrt: {trt_profile_min_shapes: …}}]",
    "sequence_batching.control_input": "no input is filled by the server: have callers send it, or "
    "export the model without it; state begins with sequence_start",
    "sequence_batching.state.initial_state": "state begins with zeros, or the number that "
    "sequences: {initial: …} has for it",
    "sequence_batching.direct": "requests of different sequences share runs automatically",
    "sequence_batching.oldest": "requests of different sequences share runs automatically; "
    "sequences: {max_sequences: …} bounds how many are remembered",
    "sequence_batching.iterative_sequence": "call the model again for each step, from the caller",
    "model_transaction_policy": "one request has one answer: a decoupled model stays on Triton",
    "model_repository_agents": "check files by signed manifests (docs/operations/security.md)",
    "model_warmup": "the inputs of warm-up runs are made from the model's file, or from example: "
    "in config.yaml",
    "batch_input": "the model must take its inputs as callers send them",
    "batch_output": "the model's outputs are cut by rows where its graph proves them independent",
    "input.allow_ragged_batch": "inputs of different lengths are padded: batching: {pad: …}",
    "input.reshape": "callers send the shape that the model's file has",
    "output.reshape": "callers get the shape that the model's file has",
    "input.format": "the model's file defines the order of the axes; pictures: inputs: {NAME: "
    "{image: {layout: nhwc}}}",
    "optimization.priority": "runs of all models are taken in the order in which they came",
    "optimization.graph": "only level is carried over",
    "parameters": "ONNX Runtime's options are under session and providers in config.yaml "
    "(docs/reference/configuration.md)",
    "optimization.execution_accelerators": "name execution providers, with their options, under "
    "providers in config.yaml",
    "instance_group": "a model's providers are configured in its config.yaml",
    "sequence_batching": "see docs/guide/sequences.md",
    "ensemble_scheduling.step.model_namespace": "models have one namespace: their folders' names",
    "response_cache": "a cache is configured in the config.yaml of each model of the pipeline",
    "dynamic_batching": "a model's batching is configured in its config.yaml",
    "optimization": "session and providers in config.yaml have what is like it",
    "max_batch_size": "each model of a pipeline bounds its own runs",
    "version_policy": "write versions: … into the config.yaml of the pipeline's folder",
}


def reason(path: str) -> str:
    """Why a field is not carried over, and what to do; "" where nothing is lost."""
    asked = path
    while asked:
        if asked in NOTHING_LOST:
            return ""
        if sentence := REASONS.get(asked):
            return f"{path} is not carried over: {sentence}"
        asked = asked.rpartition(".")[0]
    return f"{quoted(path)} is not carried over: the field is unknown"
