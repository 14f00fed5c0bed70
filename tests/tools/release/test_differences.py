"""Each difference between two surfaces needs a patch, a minor or a major version."""

from __future__ import annotations

from typing import Any

import pytest

from tools.release.changelog import undeclared
from tools.release.differences import Change, differences
from tools.release.facts import Facts, Items
from tools.release.surface import present_surface
from tools.release.versions import Version, parse_version

PREDICT = "POST /predict < application/json"


def changed(group: str, name: str, facts: dict[str, Any] | None) -> list[tuple[str, Change]]:
    """Compare this tree with a copy in which one name has these facts, or is gone if None."""
    now = present_surface().groups
    then: dict[str, dict[str, Facts]] = {group: dict(now[group])}
    if facts is None:
        then[group] = without(now[group], name)
    else:
        then[group][name] = {**then[group].get(name, {}), **facts}
    return [(one.name, one.needs) for one in differences({group: now[group]}, then)]


def without(items: Items, name: str) -> dict[str, Facts]:
    """Return the items without a name and its parts."""
    parts = (f"{name} ", f"{name}.")
    return {one: facts for one, facts in items.items() if one != name and not one.startswith(parts)}


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("routes", "POST /predict"),
        ("routes", f"{PREDICT}.timeout_ms"),
        ("routes", "POST /predict > 200 application/json.inference_time_ms"),
        ("calls", "inference.GRPCInferenceService.ModelInfer"),
        ("calls", "inference.ModelInferRequest.raw_input_contents"),
        ("errors", "Overloaded"),
        ("settings", "COHORT_PORT"),
        ("keys", "config.yaml.batching.max_batch_size"),
        ("keys", "pipeline.yaml.steps"),
        ("keys", "rollouts.yaml.*.variants.*.weight"),
        ("metrics", "model_inference_total"),
        ("commands", "cohort serve --port"),
        ("commands", "cohort rollout set"),
        ("commands", "cohort convert --out"),
        ("python", "cohort.Runtime.infer"),
    ],
)
def test_what_is_removed_needs_a_major_version(group: str, name: str) -> None:
    """The removed name is listed, and its parts are not. Added, it needs a minor version."""
    assert changed(group, name, None) == [(name, Change.MAJOR)]
    now = present_surface().groups
    before: dict[str, Items] = {**now, group: without(now[group], name)}
    needed = now[group][name].get("required", False) and " > " not in name
    expected = Change.MAJOR if needed else Change.MINOR
    assert [(one.name, one.needs) for one in differences(before, now)] == [(name, expected)]


@pytest.mark.parametrize(
    ("group", "name", "facts", "needs"),
    [
        ("settings", "COHORT_PORT", {"default": 9000}, Change.MAJOR),
        ("settings", "COHORT_PORT", {"maximum": 70000}, Change.MINOR),
        ("settings", "COHORT_PORT", {"maximum": 60000}, Change.MAJOR),
        ("settings", "COHORT_PORT", {"minimum": 1}, Change.MAJOR),
        ("settings", "COHORT_PORT", {"kinds": ["integer", "string"]}, Change.MINOR),
        ("settings", "COHORT_PORT", {"kinds": ["string"]}, Change.MAJOR),
        ("settings", "COHORT_PORT", {"text": "00000000"}, Change.PATCH),
        ("settings", "COHORT_PORT", {"required": True}, Change.MAJOR),
        ("metrics", "server_ready", {"labels": ["worker"]}, Change.MAJOR),
        ("metrics", "server_ready", {"kind": "counter"}, Change.MAJOR),
        ("errors", "Overloaded", {"http": 503}, Change.MAJOR),
        ("commands", "exit status: problems", {"status": 3}, Change.MAJOR),
        ("commands", "cohort convert --example", {"kind": "path"}, Change.MINOR),
        ("commands", "cohort optimize --out", {"kind": "file"}, Change.MAJOR),
        ("commands", "cohort serve --new", {"required": False}, Change.MINOR),
        ("commands", "cohort serve --new", {"required": True}, Change.MAJOR),
        ("routes", f"{PREDICT}.new", {"required": True}, Change.MAJOR),
        ("routes", f"{PREDICT}.new", {"required": False}, Change.MINOR),
        ("routes", "POST /predict > 200 application/json.new", {"required": True}, Change.MINOR),
        (
            "routes",
            "POST /predict > 200 application/json.model",
            {"kinds": ["integer", "string"]},
            Change.MAJOR,  # a client must read one more type
        ),
        ("calls", "inference.ModelInferRequest.id", {"number": 30}, Change.MAJOR),
        ("python", "cohort.Runtime.infer model", {"kind": "KEYWORD_ONLY"}, Change.MAJOR),
    ],
)
def test_a_change_needs_what_it_breaks(
    group: str, name: str, facts: dict[str, Any], needs: Change
) -> None:
    """A wider range of an input is a minor change; one more type of an answer is a major one."""
    assert changed(group, name, facts) == [(name, needs)]


def test_a_route_that_is_new_may_require_something() -> None:
    """A new route is one minor difference, because no caller sends to it yet."""
    before: dict[str, Items] = {"routes": {"GET /a": {}}}
    now: dict[str, Items] = {
        "routes": {"GET /a": {}, "GET /b": {}, "GET /b ?key": {"required": True}}
    }
    assert [str(one) for one in differences(before, now)] == ["minor: routes: GET /b was added"]


@pytest.mark.parametrize(
    ("last", "patch", "minor", "major"),
    [
        ("1.2.3", (1, 2, 4), (1, 3, 0), (2, 0, 0)),
        ("0.4.1", (0, 4, 2), (0, 4, 2), (0, 5, 0)),
    ],
)
def test_the_next_version_follows_semantic_versioning(
    last: str, patch: Version, minor: Version, major: Version
) -> None:
    """Before 1.0.0, a breaking change raises the second number and any other one the third."""
    version = parse_version(last)
    assert [version.after(change) for change in Change] == [patch, minor, major]


@pytest.mark.parametrize("text", ["1.2", "1.2.3rc1", "01.2.3", "1.2.3.4", "v", "", "1.2.3\n"])
def test_a_version_has_three_numbers(text: str) -> None:
    """Other forms are refused with an example."""
    with pytest.raises(ValueError, match=r"such as 1\.2\.3"):
        parse_version(text)


def test_a_breaking_change_is_declared_by_its_name() -> None:
    """A name counts under Breaking only, in backticks; what is added needs no entry."""
    found = differences({"settings": {"COHORT_A": {}}}, {"settings": {"COHORT_B": {}}})
    entry = "- `COHORT_A` is gone; use `COHORT_B`.\n"
    assert undeclared(found, f"## [Unreleased]\n### Breaking\n{entry}") == []
    for text in (f"### Added\n{entry}", f"### Breaking\n- COHORT_A\n### Added\n{entry}", ""):
        assert [one.name for one in undeclared(found, text)] == ["COHORT_A"]
