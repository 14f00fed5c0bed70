"""The configuration of one model: `models/<name>/config.yaml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, ConfigDict, PlainValidator, WithJsonSchema, with_config

from cohort.batching import BatchPolicy
from cohort.errors import CohortError
from cohort.repository.cache_config import CachePolicy
from cohort.repository.generation_config import GENERATION_RANGES, GenerationPolicy
from cohort.repository.processing_config import (
    PROCESSING_RANGES,
    InputConfigs,
    OutputConfigs,
)
from cohort.repository.schema import Range, invalid, show, unknown_key, validate_tree
from cohort.repository.sequence_config import SEQUENCE_RANGES, SequencePolicy, StateConfig
from cohort.repository.yaml_files import parse_yaml, read_text
from cohort.session import SPELLINGS, Provider, ProviderPolicy, SessionOptions, parse_provider

CONFIG_FILE = "config.yaml"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """`versions:` in a model's config: the versions in `only`, or else the `latest` highest.

    `latest` 0 means all versions.
    """

    latest: int = 1
    only: tuple[int, ...] = ()

    def wanted(self, on_disk: Collection[int]) -> frozenset[int]:
        """Return the versions on disk that should be loaded."""
        chosen = self.available(on_disk)
        return chosen if self.only else frozenset(sorted(chosen)[-self.latest :])

    def available(self, on_disk: Collection[int]) -> frozenset[int]:
        """Return the versions on disk that the policy may choose from."""
        return frozenset(on_disk).intersection(self.only or on_disk)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """`warm_up:` in a model's config: runs before a version takes traffic.

    rows: Rows of these runs, one run for each number; default None: 1, and also 8 on a GPU if
        requests share runs.
    """

    rows: tuple[int, ...] | None = None


def _parse_versions(value: object) -> VersionPolicy:
    if value == "all":
        return VersionPolicy(latest=0)
    if isinstance(value, dict) and list(value) == ["latest"]:
        if _is_version(value["latest"]):
            return VersionPolicy(latest=value["latest"])
        raise invalid(f"latest must be a whole number >= 1, got {show(value['latest'])}")
    if isinstance(value, dict) and (unknown := [key for key in value if key != "latest"]):
        raise invalid(unknown_key(unknown[0], ["latest"]))
    if isinstance(value, list) and value:
        for one in value:
            if not _is_version(one):
                raise invalid(f"a version must be a whole number >= 1, got {show(one)}")
        return VersionPolicy(only=tuple(sorted(set(value))))
    raise invalid(
        f"must be {{latest: 2}}, all, or a list of versions such as [1, 3], got {show(value)}"
    )


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**18


_NUMBER = {"type": "integer", "minimum": 1, "maximum": 10**18 - 1}
_VERSIONS_SCHEMA = {
    "anyOf": [
        {"const": "all"},
        {
            "type": "object",
            "properties": {"latest": _NUMBER},
            "required": ["latest"],
            "additionalProperties": False,
        },
        {"type": "array", "items": _NUMBER, "minItems": 1},
    ]
}


def _parse_link(value: object) -> Provider:
    try:
        return parse_provider(value)
    except CohortError as error:
        raise invalid(getattr(error, "problem", "") or str(error)) from None


def _check_chain(chain: tuple[Provider, ...]) -> tuple[Provider, ...]:
    if not chain:
        raise invalid("must name at least one, such as [cpu]")
    return chain


MAX_EXAMPLES_GIVEN = 16
"""The limit of `example:`, as each example runs at every load."""


GivenExample: TypeAlias = Mapping[str, Any] | str
"""The inputs of a request, or the name of a .npz in the version's folder."""

_FILE = r"[^./\\][^/\\]*\.npz"


def _parse_examples(value: object) -> tuple[GivenExample, ...]:
    if value == {}:
        return ()
    given = value if isinstance(value, list) else [value]
    wrong = [one for one in given if not (_is_file(one) or (isinstance(one, dict) and one))]
    if wrong:
        got = "none" if wrong[0] == {} else show(wrong[0])
        raise invalid(
            "must be a request's inputs, such as {input_ids: [[101, 102]]}, a .npz in the "
            f"version's folder, or a list of these, got {got}"
        )
    if len(given) > MAX_EXAMPLES_GIVEN:
        raise invalid(f"must be {MAX_EXAMPLES_GIVEN} requests at most, got {len(given)}")
    return tuple(given)


def _is_file(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(_FILE, value) is not None


_FILE_SCHEMA = {"type": "string", "pattern": f"^{_FILE}$"}
_EXAMPLE_SCHEMA = {"anyOf": [{"type": "object", "minProperties": 1}, _FILE_SCHEMA]}
_EXAMPLES_SCHEMA = {
    "anyOf": [
        {"type": "object"},
        _FILE_SCHEMA,
        {"type": "array", "items": _EXAMPLE_SCHEMA, "maxItems": MAX_EXAMPLES_GIVEN},
    ]
}

_PROVIDER_SCHEMA = {"enum": list(SPELLINGS)}
_CHAIN_SCHEMA = {
    "type": ["array", "null"],
    "items": {
        "anyOf": [
            _PROVIDER_SCHEMA,
            {
                "type": "object",
                "propertyNames": _PROVIDER_SCHEMA,
                "additionalProperties": {
                    "type": ["object", "null"],
                    "additionalProperties": {"not": {"type": "null"}},
                },
                "minProperties": 1,
                "maxProperties": 1,
            },
        ]
    },
    "minItems": 1,
}


_TRANSFORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def _check_transform(value: str | None) -> str | None:
    if value is not None and not _TRANSFORM.fullmatch(value):
        raise invalid(f"must be module:Class, got {show(value)}")
    return value


@dataclass(frozen=True, slots=True)
class PagePolicy:
    """The permissions of the page /playground for a model.

    download: Let visitors download the model's files, to run it in their browsers; default False.
    """

    download: bool = False


REQUEST_SECONDS = 30.0
"""Maximum time of a request by default."""


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`models/<name>/config.yaml`. Every key is optional.

    providers: Providers, in order of preference. Each is a name, or a name with options of ONNX
        Runtime: {cuda: {device_id: 0}}; default None: COHORT_PROVIDERS.
    provider_policy: The rule if the first provider is not available; default "prefer": use the
        next. `require` fails unless the first runs a node, and `require_all` unless it runs all.
    versions: Versions to load: {latest: N} for the N highest, all, or a list of numbers; default
        {latest: 1}. Versions of a rollout are always loaded.
    session: Options of ONNX Runtime's session.
    batching: Which requests share a run.
    timeout_ms: Maximum time of a request; requests may ask for less; default 30000: a
        language model has 600000.
    objective_ms: Time within which requests should be answered, for latency alerts; default None:
        no objective. It ends no request.
    memory_limit_mb: Maximum memory of a session's runs on the CPU and on CUDA, without its weights;
        default None: no limit.
    max_output_mb: Maximum size of a request's outputs; default 1024.
    trust_decoder: Run a model that decodes files in its graph in the server's process; default
        False: in a separate process. Some files can crash or hang such a model.
    warm_up: Runs before a version takes traffic.
    allow_signature_change: Let a version take over even if its inputs or outputs break callers of
        the one before; default False. By default, it gets only rollouts and requests that name it.
    example: A typical request: its inputs by name, as in /predict, a .npz in the version's folder,
        or a list of these; default none. A shape stands for generated values: [1, 512], or {shape:
        [512]} for an input of one axis. Each runs when a version loads; if it fails, the load
        fails. The first measures and warms up the version, and is shown to callers. If rows are
        independent only for some sizes, those of the examples share runs. A language model has
        {prompt: Hello, answer: Hi}; other answers fail the load.
    inputs: Conversion of callers' inputs, by input name: images, audio, text or table columns;
        default none.
    outputs: Conversion of the model's outputs, by output name, such as labels; default none.
    transform: A Python class, `module:Class`, of a module next to this file or in the version's
        folder, for both conversions; default None. It needs COHORT_MODEL_CODE=allow.
    state: Inputs that the server keeps in a sequence; default none. With {h_in: h_out}, output
        h_out is the next request's input h_in. It needs one worker.
    sequences: Limits of sequences.
    cache: Answers that are kept, for requests with the same inputs; default None: no answers.
    generation: The running of a language model.
    load_timeout_s: Maximum time to load a version, with its warm-up; default 120.
    playground: Permissions of the page /playground.
    """

    providers: Annotated[
        Annotated[
            tuple[Annotated[Provider, PlainValidator(_parse_link)], ...],
            AfterValidator(_check_chain),
        ]
        | None,
        WithJsonSchema(_CHAIN_SCHEMA),
    ] = None
    provider_policy: ProviderPolicy = "prefer"
    versions: Annotated[
        VersionPolicy, PlainValidator(_parse_versions), WithJsonSchema(_VERSIONS_SCHEMA)
    ] = VersionPolicy()
    session: SessionOptions = field(default_factory=SessionOptions)
    batching: BatchPolicy = field(default_factory=BatchPolicy)
    timeout_ms: float | None = None
    objective_ms: float | None = None
    memory_limit_mb: int | None = None
    max_output_mb: int = 1024
    trust_decoder: bool = False
    warm_up: WarmUp = WarmUp()
    allow_signature_change: bool = False
    example: Annotated[
        tuple[GivenExample, ...],
        PlainValidator(_parse_examples),
        WithJsonSchema(_EXAMPLES_SCHEMA),
    ] = ()
    inputs: InputConfigs = field(default_factory=dict)
    outputs: OutputConfigs = field(default_factory=dict)
    transform: Annotated[
        str | None,
        AfterValidator(_check_transform),
        WithJsonSchema({"type": "string", "pattern": f"^{_TRANSFORM.pattern}$"}),
    ] = None
    state: StateConfig = field(default_factory=dict)
    sequences: SequencePolicy = field(default_factory=SequencePolicy)
    cache: CachePolicy | None = None
    generation: GenerationPolicy = field(default_factory=GenerationPolicy)
    load_timeout_s: float = 120.0
    playground: PagePolicy = PagePolicy()

    @property
    def changes_signature(self) -> bool:
        """True if callers' inputs or outputs differ from the model's."""
        return bool(self.inputs or self.outputs or self.state or self.transform)

    def timeout(self, default: float = REQUEST_SECONDS) -> float:
        """Return the maximum time of a request in seconds; `default` if none is configured."""
        return default if self.timeout_ms is None else self.timeout_ms / 1000


A_DAY_MS = 86_400_000

RANGES: Mapping[str, Range] = {
    "session.intra_op_threads": Range(0, 1024, "0 lets ONNX Runtime choose"),
    "batching.max_batch_size": Range(1, 2**20, "1 turns batching off"),
    "batching.max_queue_delay_ms": Range(0, A_DAY_MS, "0 adds no delay"),
    "batching.max_queue_size": Range(1, 2**20),
    "batching.max_queue_seconds": Range(0.001, 86_400),
    "batching.latency_budget_ms": Range(0.001, A_DAY_MS),
    "batching.pad.*.axis": Range(1, 64, "axis 0 holds the rows"),
    "batching.pad.*.multiple": Range(1, 2**20, "1 lets only equal lengths share a run"),
    "timeout_ms": Range(1, A_DAY_MS),
    "objective_ms": Range(0.001, A_DAY_MS, "without it there is no latency alert"),
    "memory_limit_mb": Range(1, 2**20, "without it there is no limit"),
    "max_output_mb": Range(1, 2**20),
    "warm_up.rows.*": Range(1, 2**20),
    "load_timeout_s": Range(0.001, 86_400),
    **PROCESSING_RANGES,
    **SEQUENCE_RANGES,
    "cache.max_mb": Range(0.001, 2**20),
    **GENERATION_RANGES,
}


def load_model_config(folder: Path) -> ModelConfig:
    """Read the config of the model in `folder`; return the defaults if there is none.

    Raises ConfigProblems, a ConfigInvalid with all problems of the file.
    """
    file = f"{folder.name}/{CONFIG_FILE}"
    text = read_text(folder / CONFIG_FILE, file)
    return ModelConfig() if text is None else parse_model_config(text, file)


def parse_model_config(text: str, file: str) -> ModelConfig:
    """Read the text of a config; messages call it `file`. Raises ConfigProblems."""
    tree = parse_yaml(text, file)
    return ModelConfig() if tree is None else validate_tree(tree, ModelConfig, file, RANGES)
