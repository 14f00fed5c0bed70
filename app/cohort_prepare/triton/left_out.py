"""Fields of Triton's configuration without a counterpart, and advice for them."""

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
"""Fields that are in the model file or folder, or have no meaning in Cohort."""

REASONS: Mapping[str, str] = {
    "dynamic_batching.preferred_batch_size": "the best size is measured at load",
    "dynamic_batching.preserve_ordering": "match answers to requests by id",
    "dynamic_batching.priority_levels": ("set priorities of API keys: docs/operations/security.md"),
    "dynamic_batching.default_priority_level": "set priorities of API keys: "
    "docs/operations/security.md",
    "dynamic_batching.priority_queue_policy": "there is one queue for all priorities",
    "dynamic_batching.default_queue_policy.timeout_action": "requests that miss their deadline get "
    "an error: DEADLINE_EXCEEDED, 504",
    "dynamic_batching.default_queue_policy.allow_timeout_override": "callers may always set a "
    "shorter time than timeout_ms, but never a longer one",
    "instance_group.count": "one session runs as many requests at once as there are cores, or "
    "slots of the GPU",
    "instance_group.rate_limiter": "the scheduler limits the runs of all models together",
    "instance_group.profile": "TensorRT's execution provider creates profiles: "
    "providers: [{tensorrt: {trt_profile_min_shapes: …}}]",
    "sequence_batching.control_input": "the server does not fill inputs: callers must send it, or "
    "export the model without it; sequence_start resets the state",
    "sequence_batching.state.initial_state": "state starts at zero, or at the number in "
    "sequences: {initial: …}",
    "sequence_batching.direct": "requests of different sequences are batched automatically",
    "sequence_batching.oldest": "requests of different sequences are batched automatically; "
    "sequences: {max_sequences: …} limits their number",
    "sequence_batching.iterative_sequence": "call the model for each step from the client",
    "model_transaction_policy": "each request has one answer: keep decoupled models on Triton",
    "model_repository_agents": "verify files with signed manifests (docs/operations/security.md)",
    "model_warmup": "inputs of warm-up runs are made from the model file, or from example: in "
    "config.yaml",
    "batch_input": "callers send the model's inputs unchanged",
    "batch_output": "outputs are split by rows if the graph proves that rows are independent",
    "input.allow_ragged_batch": "inputs of different lengths are padded: batching: {pad: …}",
    "input.reshape": "callers send the model's shape",
    "output.reshape": "callers get the model's shape",
    "input.format": "the model file defines the order of axes; for images: inputs: {NAME: "
    "{image: {layout: nhwc}}}",
    "optimization.priority": "runs of all models start in order of arrival",
    "optimization.graph": "only level is converted",
    "parameters": "set ONNX Runtime's options under session and providers in config.yaml "
    "(docs/reference/configuration.md)",
    "optimization.execution_accelerators": "set execution providers and their options under "
    "providers in config.yaml",
    "instance_group": "set providers in each model's config.yaml",
    "sequence_batching": "see docs/guide/sequences.md",
    "ensemble_scheduling.step.model_namespace": "models have one namespace: their folders' names",
    "response_cache": "set a cache in the config.yaml of each model",
    "dynamic_batching": "set batching in each model's config.yaml",
    "optimization": "see session and providers in config.yaml",
    "max_batch_size": "each model of a pipeline limits its batches",
    "version_policy": "set versions: … in the config.yaml of the pipeline's folder",
}


def reason(path: str) -> str:
    """Return why a field is not converted, with advice; "" if nothing is lost."""
    asked = path
    while asked:
        if asked in NOTHING_LOST:
            return ""
        if sentence := REASONS.get(asked):
            return f"{path} is not converted: {sentence}"
        asked = asked.rpartition(".")[0]
    return f"{quoted(path)} is not converted: unknown field"
