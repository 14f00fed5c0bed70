"""`rollouts.yaml`: its language, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.repository import ConfigProblems
from cohort.rollouts import Guard, Shadow, Sticky, Variant, load_rollouts, parse_rollouts
from cohort.rollouts.ramp import Ramp

WHOLE = """
digits:
  variants:
    stable: {version: 1, weight: 90}
    canary: {version: 2, weight: 10}
  baseline: canary
  sticky: {header: X-User-Id}
  shadow: {version: 3, sample: 0.2, keep_examples: 5, redact: [image]}
  guard: {max_error_rate_increase: 0.01, max_latency_ratio: 1.5, max_disagreement: 0.02,
          min_requests: 300, confidence: 0.99}
"""


def problems(text: str) -> list[str]:
    """Everything that is wrong with `text`."""
    with pytest.raises(ConfigProblems) as refused:
        parse_rollouts(text, "rollouts.yaml")
    return [f"{one.key}: {one.sentence}" for one in refused.value.problems]


def test_every_key_is_read() -> None:
    """Values become those of the modules; names of headers are case-insensitive."""
    config = parse_rollouts(WHOLE, "rollouts.yaml")["digits"]
    rollout = config.rollout
    assert rollout.variants == {
        "stable": Variant("stable", 1, 90),
        "canary": Variant("canary", 2, 10),
    }
    assert (rollout.model, rollout.baseline) == ("digits", "canary")
    assert rollout.sticky == Sticky(header="x-user-id")
    assert rollout.shadow == Shadow(3, 0.2, 5, ("image",))
    assert config.guard == Guard(0.01, 1.5, 0.02, 300, 0.99)
    assert rollout.versions == {1, 2, 3}


def test_what_is_left_out_has_defaults() -> None:
    """The first variant is the baseline; nothing is sticky, shadowed or watched."""
    text = "m: {variants: {a: {version: 1, weight: 1}, b: {version: 2, weight: 0}}}"
    config = parse_rollouts(text, "rollouts.yaml")["m"]
    assert config.rollout.baseline == "a"
    assert (config.rollout.sticky, config.rollout.shadow) == (None, None)
    assert config.guard == Guard(None, None, None, min_requests=200, confidence=0.95)
    shadow = parse_rollouts(with_(shadow="{version: 3}"), "rollouts.yaml")["m"].rollout.shadow
    assert shadow == Shadow(3, sample=1.0, keep_examples=0, redact=())


def test_no_file_and_an_empty_one_have_no_rollouts(tmp_path: Path) -> None:
    """Most servers have one of the two."""
    path = tmp_path / "rollouts.yaml"
    assert load_rollouts(path) == {}
    path.touch()
    assert load_rollouts(path) == {}


def with_(**parts: str) -> str:
    """Return a rollout of two variants with other parts in place."""
    usual = {"variants": "{a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}"}
    keys = usual | parts
    return "m:\n" + "".join(f"  {key}: {value}\n" for key, value in keys.items())


@pytest.mark.parametrize(
    ("parts", "key", "said"),
    [
        ({"variants": "{}"}, "m.variants", "at least one"),
        ({"variants": "{a: {version: 1, weight: 0}}"}, "m.variants", "weight 0"),
        ({"variants": "{a: {version: 1, weight: -1}}"}, "m.variants.a.weight", "got -1"),
        ({"variants": "{a: {version: 1, weight: .nan}}"}, "m.variants.a.weight", "finite"),
        ({"variants": "{a: {version: 1, weight: .inf}}"}, "m.variants.a.weight", "finite"),
        ({"variants": "{a: {version: 1, weight: much}}"}, "m.variants.a.weight", "'much'"),
        ({"variants": "{a: {version: 1, weight: 90%}}"}, "m.variants.a.weight", "; write 90"),
        ({"variants": "{a: {version: 0, weight: 1}}"}, "m.variants.a.version", "got 0"),
        ({"variants": "{a: {version: '1', weight: 1}}"}, "m.variants.a.version", "whole"),
        ({"variants": "{a: {version: 1.5, weight: 1}}"}, "m.variants.a.version", "whole"),
        ({"variants": "{a: {weight: 1}}"}, "m.variants.a.version", "is missing"),
        (
            {"variants": "{a: {version: 1, weight: 1, wieght: 1}}"},
            "m.variants.a",
            "unknown key 'wieght'; did you mean 'weight'",
        ),
        ({"variants": "{a b: {version: 1, weight: 1}}"}, "m.variants", "'a b'"),
        ({"variants": "[1]"}, "m.variants", "keys with values"),
        ({"baseline": "c"}, "m.baseline", "'c' not found; available: a, b"),
        ({"sticky": "{}"}, "m.sticky", "one of {header"),
        ({"sticky": "{header: a, parameter: b}"}, "m.sticky", "one of {header"),
        ({"sticky": "x-user-id"}, "m.sticky", "; write {header: x-user-id}"),
        ({"sticky": "{heder: a}"}, "m.sticky", "unknown key 'heder'; did you mean 'header'"),
        ({"sticky": "{header: 'a: b'}"}, "m.sticky", "valid header name"),
        ({"shadow": "{version: 1}"}, "m.shadow.version", "baseline"),
        ({"shadow": "{version: 3, sample: 1.1}"}, "m.shadow.sample", "from 0 to 1"),
        ({"shadow": "{version: 3, keep_examples: -1}"}, "m.shadow.keep_examples", "got -1"),
        ({"shadow": "{sample: 1}"}, "m.shadow.version", "is missing"),
        ({"guard": "{max_latency_ratio: 0.9}"}, "m.guard.max_latency_ratio", "from 1"),
        ({"guard": "{max_error_rate_increase: 1.1}"}, "m.guard.max_error_rate_increase", "0 to 1"),
        ({"guard": "{max_disagreement: -0.1}"}, "m.guard.max_disagreement", "0 to 1"),
        ({"guard": "{min_requests: 0}"}, "m.guard.min_requests", "from 1"),
        ({"guard": "{confidence: 1}"}, "m.guard.confidence", "0.999999"),
        ({"guard": "{max_error: 1}"}, "m.guard", "unknown key 'max_error'"),
        ({"weights": "{}"}, "m", "unknown key 'weights'"),
    ],
)
def test_a_mistake_is_told_with_its_key(parts: dict[str, str], key: str, said: str) -> None:
    """The key's path and what to do."""
    (problem,) = problems(with_(**parts))
    assert problem.startswith(f"{key}: ")
    assert said in problem


def test_a_ramp_is_read_with_its_soak_times() -> None:
    """There is one for all steps or one for each, in minutes; an hour by default."""
    for soak, seconds in (("", (3600.0,) * 3), ("soak_minutes: 5", (300.0,) * 3),
                          ("soak_minutes: [1, 2.5, 3]", (60.0, 150.0, 180.0))):  # fmt: skip
        rollout = parse_rollouts(ramped(f"ramp: [1%, 5 %, 12.5%], {soak}"), "rollouts.yaml")["m"]
        assert rollout.rollout.ramp == Ramp("b", (1.0, 5.0, 12.5), seconds)
        assert rollout.rollout.variants["b"].weight == 0


def test_all_weight_may_be_a_ramps() -> None:
    """Only variants that can never get a caller are a mistake."""
    text = ramped("ramp: [5%]").replace("weight: 1", "weight: 0")
    rollout = parse_rollouts(text, "rollouts.yaml")["m"].rollout
    assert rollout.at_step(0).shares() == {"a": 0.95, "b": 0.05}


def ramped(keys: str, more: str = "guard: {max_error_rate_increase: 0.01}") -> str:
    """Return a rollout whose second variant has these keys."""
    variants = f"{{a: {{version: 1, weight: 1}}, b: {{version: 2, {keys}}}}}"
    return f"m: {{variants: {variants}, {more}}}"


@pytest.mark.parametrize(
    ("keys", "more", "key", "said"),
    [
        ("ramp: [1, 5%]", "", "b.ramp", "such as 5%, got 1"),
        ("ramp: [5%, 100%]", "", "b.ramp", "below 100%"),
        ("ramp: [5%, 1%]", "", "b.ramp", "larger than the one before"),
        ("ramp: []", "", "b.ramp", "1 to 100 steps"),
        (f"ramp: {[f'{step / 2}%' for step in range(1, 102)]}", "", "b.ramp", "1 to 100 steps"),
        ("ramp: 5%", "", "b.ramp", "must be a list"),
        ("ramp: [5%], weight: 1", "", "b.weight", "the ramp sets the share"),
        ("ramp: [5%], soak_minutes: [1, 2]", "", "b.soak_minutes", "each of the 1 steps, got 2"),
        ("ramp: [5%], soak_minutes: 0", "", "b.soak_minutes", "from 0.001"),
        ("weight: 1, auto_promote: true", "", "b.ramp", "is missing"),
        ("ramp: [5%]", "guard: {min_requests: 5}", "b.ramp", "requires a guard with a limit"),
        ("ramp: [5%]", "guard: {max_disagreement: 0.1}", "b.ramp", "requires a guard with a limit"),
        ("sticky: 1", "", "b", "unknown key 'sticky'"),
        ("auto_promote: false", "", "b.weight", "is missing"),
    ],
)
def test_a_mistake_in_a_ramp_is_told_with_its_key(
    keys: str, more: str, key: str, said: str
) -> None:
    """It needs a guard that can stop it, and is the only word about its variant's share."""
    text = ramped(keys, more) if more else ramped(keys)
    (problem,) = problems(text)
    assert problem.startswith(f"m.variants.{key}: ")
    assert said in problem


def test_a_shadow_of_its_version_may_guard_a_ramp() -> None:
    """Its disagreement rolls the variant back, and ends the ramp."""
    more = "shadow: {version: 2}, guard: {max_disagreement: 0.1}"
    assert parse_rollouts(ramped("ramp: [5%]", more), "rollouts.yaml")["m"].rollout.ramp


def test_all_mistakes_of_all_models_come_at_once() -> None:
    """No part of the file is used."""
    text = "m: {variants: {a: {version: 0, weight: -1}}}\nn: {baseline: x}\n"
    assert [one.partition(":")[0] for one in problems(text)] == [
        "n.variants",
        "m.variants.a.version",
        "m.variants.a.weight",
    ]


@pytest.mark.parametrize("text", ["[1]", "a: 1", "a", "m: {variants: {a: {version: 1}}", "m: null"])
def test_no_rollouts_at_all(text: str) -> None:
    """Other YAML, and texts that are not YAML, are also reported."""
    assert problems(text)
