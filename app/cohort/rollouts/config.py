"""The operator's config of rollouts: `rollouts.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    with_config,
)

from cohort.errors import did_you_mean, quoted
from cohort.repository import (
    ConfigProblems,
    Problem,
    Range,
    invalid,
    parse_yaml,
    read_text,
    show,
    validate_tree,
)
from cohort.rollouts.judgement import Guard
from cohort.rollouts.ramp import MAX_STEPS, Ramp
from cohort.rollouts.rollout import Rollout, Shadow, Sticky, Variant

NO_LIMITS = Guard()


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """The split of a model's traffic, and the guard's limits."""

    rollout: Rollout
    guard: Guard = NO_LIMITS

    def misfits_of_state(self) -> list[str]:
        """Return a sentence for each part that does not work for a model with state.

        Only the version that remembers a sequence can run its requests.
        """
        rollout, guard, found = self.rollout, self.guard, []
        limits = (guard.max_error_rate_increase, guard.max_latency_ratio, guard.max_disagreement)
        if rollout.candidates and rollout.sticky is None:
            found.append(
                f"rollout of {rollout.model}: without sticky, requests of one sequence reach "
                "several versions and are refused: set sticky: {header: x-sequence-id} or "
                "sticky: {parameter: sequence_id}"
            )
        if rollout.shadow is not None or any(limit is not None for limit in limits):
            found.append(
                f"rollout of {rollout.model}: the model has state, which guard and shadow cannot "
                "judge: nothing is rolled back automatically"
            )
        return found


VARIANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# https://www.rfc-editor.org/rfc/rfc9110#name-tokens
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


PERCENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,6})?) ?%")
_STEPS_SCHEMA = {
    "type": ["array", "null"],
    "items": {"type": "string", "pattern": f"^(?=.*[1-9])(?:{PERCENT.pattern})$"},
    "minItems": 1,
    "maxItems": MAX_STEPS,
}


def _check_steps(steps: tuple[object, ...]) -> tuple[object, ...]:
    found = [_percent(step) for step in steps]
    if not steps or len(steps) > MAX_STEPS:
        raise invalid(f"must have 1 to {MAX_STEPS} steps, such as [1%, 5%, 25%, 50%]")
    if found != sorted(set(found)):
        raise invalid("each step must be larger than the one before")
    return tuple(found)


def _percent(step: object) -> float:
    match = PERCENT.fullmatch(step) if isinstance(step, str) else None
    if match is None or not float(match[1]):
        raise invalid(f"must be shares above 0% and below 100%, such as 5%, got {show(step)}")
    return float(match[1])


def _as_tuple(value: object) -> object:
    """Convert one number to a tuple of one; other types are refused by validation."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, int | float) else value


@dataclass(frozen=True, slots=True)
class _WrittenVariant:
    """An arm of a rollout, as written in the file.

    version: Version that answers its callers.
    weight: Its share of callers, relative to the sum of all weights; default None: required, except
        with a ramp.
    ramp: Its share of callers, step by step. It requires a guard with a limit that judges the
        variant; default None: its share stays.
    soak_minutes: Minutes at each step before the next: one number, or one for each step; default
        60.
    auto_promote: Give it all callers after the last step; default False.
    """

    version: int
    weight: float | None = None
    ramp: Annotated[
        Annotated[tuple[Any, ...], AfterValidator(_check_steps)] | None,
        WithJsonSchema(_STEPS_SCHEMA),
    ] = None
    soak_minutes: Annotated[
        tuple[float, ...],
        BeforeValidator(_as_tuple, json_schema_input_type=float | tuple[float, ...]),
    ] = (60.0,)
    auto_promote: bool = False


def _check_sticky(sticky: Sticky) -> Sticky:
    if bool(sticky.header) == bool(sticky.parameter):
        raise invalid("must be one of {header: x-user-id} and {parameter: user}")
    if sticky.header and not HEADER_NAME.fullmatch(sticky.header):
        raise invalid(f"{quoted(sticky.header)} is not a valid header name")
    return Sticky(sticky.header.lower(), sticky.parameter)


_EMPTY = {"maxLength": 0}
_ONE_OF_BOTH = {
    "anyOf": [
        {
            "properties": {"header": {"pattern": f"^{HEADER_NAME.pattern}$"}, "parameter": _EMPTY},
            "required": ["header"],
        },
        {
            "properties": {"header": _EMPTY, "parameter": {"minLength": 1}},
            "required": ["parameter"],
        },
    ]
}


def _check_variants(variants: dict[str, _WrittenVariant]) -> dict[str, _WrittenVariant]:
    for name in variants:
        if not VARIANT_NAME.fullmatch(name):
            raise invalid(
                f"{quoted(name)} is not a valid variant name: it must have at most 64 letters, "
                "digits, '.', '_' and '-', and start with a letter or digit"
            )
    if not variants:
        raise invalid("must have at least one variant, such as stable: {version: 1, weight: 100}")
    if not any(variant.weight is None or variant.weight for variant in variants.values()):
        raise invalid("must not all have weight 0")
    return variants


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class _Written:
    """One model's part of the file.

    variants: Arms of the rollout, by name: at most 64 letters, digits, '.', '_' and '-'.
    baseline: Variant that the others are judged against; default "": the first.
    sticky: Key that keeps a caller on a variant: a header or a parameter; default None: requests
        are assigned at random.
    shadow: A version that gets copies of requests and answers no caller; default None: no shadow.
    guard: Limits beyond which a variant is rolled back, or the shadow stopped; default: no limits.
    """

    variants: Annotated[
        dict[str, _WrittenVariant],
        AfterValidator(_check_variants),
        Field(
            json_schema_extra={
                "minProperties": 1,
                "propertyNames": {"pattern": f"^{VARIANT_NAME.pattern}$"},
            }
        ),
    ]
    baseline: str = ""
    sticky: (
        Annotated[Sticky, AfterValidator(_check_sticky), Field(json_schema_extra=_ONE_OF_BOTH)]
        | None
    ) = None
    shadow: Shadow | None = None
    guard: Guard = NO_LIMITS


VERSION_RANGE = Range(1, 10**18 - 1)
SHARE_RANGE = Range(0, 1, "a share")
SOAK_RANGE = Range(0.001, 525_600, "minutes")

ROLLOUT_RANGES: Mapping[str, Range] = {
    "*.variants.*.version": VERSION_RANGE,
    "*.variants.*.weight": Range(0, 1e9),
    "*.variants.*.soak_minutes": SOAK_RANGE,
    "*.variants.*.soak_minutes.*": SOAK_RANGE,
    "*.shadow.version": VERSION_RANGE,
    "*.shadow.sample": SHARE_RANGE,
    "*.shadow.keep_examples": Range(0, 1000, "0 keeps none"),
    "*.guard.max_error_rate_increase": SHARE_RANGE,
    "*.guard.max_latency_ratio": Range(1, 1000),
    "*.guard.max_disagreement": SHARE_RANGE,
    "*.guard.min_requests": Range(1, 10**9),
    "*.guard.confidence": Range(0.5, 0.999999),
}


Written = dict[str, _Written]
"""The content of the file: rollouts by model."""


def load_rollouts(path: Path) -> Mapping[str, RolloutConfig]:
    """Read the rollouts by model; a missing file has no rollouts.

    Raises ConfigProblems, a ConfigInvalid with all problems of the file.
    """
    text = read_text(path, path.name)
    return {} if text is None else parse_rollouts(text, path.name)


def find_misnamed(path: Path) -> tuple[Problem, ...]:
    """Return a problem if the file exists only under YAML's other file extension."""
    other = path.with_suffix({".yaml": ".yml", ".yml": ".yaml"}.get(path.suffix, path.suffix))
    if path.exists() or not other.is_file():
        return ()
    return (Problem(other.name, "", f"is not read; rename it to {path.name}"),)


def parse_rollouts(text: str, file: str) -> Mapping[str, RolloutConfig]:
    """Read the text of a rollouts file, called `file` in messages. Raises ConfigProblems."""
    tree = parse_yaml(text, file)
    if tree is None:
        return {}
    written = validate_tree(tree, Written, file, ROLLOUT_RANGES)
    problems = [
        Problem(file, f"{model}.{key}", sentence)
        for model, one in written.items()
        for key, sentence in _contradictions(one)
    ]
    if problems:
        raise ConfigProblems(problems)
    return {model: _to_config(model, one) for model, one in written.items()}


def _contradictions(written: _Written) -> Iterator[tuple[str, str]]:
    variants, shadow = written.variants, written.shadow
    if written.baseline and written.baseline not in variants:
        known = did_you_mean(written.baseline, variants)
        yield "baseline", f"variant {quoted(written.baseline)} not found{known}"
    elif shadow is not None and shadow.version == variants[_baseline(written)].version:
        yield "shadow.version", f"must differ from the baseline's version, {shadow.version}"
    else:
        for name, variant in variants.items():
            if variant.ramp is None and variant.weight is None:
                yield f"variants.{name}.weight", "is missing"
            elif variant.ramp is None and (variant.auto_promote or variant.soak_minutes != (60.0,)):
                yield f"variants.{name}.ramp", "is missing: there is nothing to soak or promote"
            elif variant.ramp is not None:
                yield from _ramp_contradictions(name, variant, variant.ramp, written)


def _ramp_contradictions(
    name: str, variant: _WrittenVariant, steps: Sequence[float], written: _Written
) -> Iterator[tuple[str, str]]:
    guard, shadow, at = written.guard, written.shadow, f"variants.{name}"
    others = [other for key, other in written.variants.items() if key != name]
    if variant.weight is not None:
        yield f"{at}.weight", "must be left out: the ramp sets the share"
    if name == _baseline(written):
        yield f"{at}.ramp", "must be left out: the baseline serves all remaining callers"
    elif variant.version == written.variants[_baseline(written)].version:
        yield f"{at}.version", "must differ from the baseline's, against which the ramp is judged"
    if any(other.ramp is not None for other in others):
        yield f"{at}.ramp", "only one variant may have a ramp"
    if len(variant.soak_minutes) not in (1, len(steps)):
        yield (
            f"{at}.soak_minutes",
            f"must be one number, or one for each of the {len(steps)} steps, "
            f"got {len(variant.soak_minutes)}",
        )
    shadowed = shadow is not None and shadow.version == variant.version
    if (
        guard.max_error_rate_increase is None
        and guard.max_latency_ratio is None
        and (guard.max_disagreement is None or not shadowed)
    ):
        yield f"{at}.ramp", "requires a guard with a limit that judges this variant"


def _baseline(written: _Written) -> str:
    return written.baseline or next(iter(written.variants))


def _to_config(model: str, written: _Written) -> RolloutConfig:
    variants = {
        name: Variant(name, variant.version, variant.weight or 0.0)
        for name, variant in written.variants.items()
    }
    ramps = [
        Ramp(
            name,
            variant.ramp,
            tuple(60 * minutes for minutes in variant.soak_minutes)
            * (len(variant.ramp) // len(variant.soak_minutes)),
            variant.auto_promote,
        )
        for name, variant in written.variants.items()
        if variant.ramp is not None
    ]
    rollout = Rollout(
        model,
        variants,
        _baseline(written),
        written.sticky,
        written.shadow,
        ramp=ramps[0] if ramps else None,
    )
    return RolloutConfig(rollout, written.guard)
