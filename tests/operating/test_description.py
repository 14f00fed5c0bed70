"""Descriptions of models and versions, in plain values."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cohort.errors import ModelNotFound, NotReady, VersionNotFound
from cohort.operating import describe_profile, describe_rows
from cohort.profiling import row_advice
from cohort.registry import State
from cohort.rollouts import parse_rollouts
from cohort.row_independence import (
    NOT_READ,
    NodePlace,
    OutputRows,
    RequestKind,
    RowKind,
    RowVerdict,
)
from cohort.session import Placement
from cohort.session.running import Fallback
from cohort.tensors import Arrays, TensorSpec
from tests.engines import ControlledEngine, batching_of, make_catalog, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import make_control_plane, make_rollouts

SOUND = {"retry_in_seconds": None, "held_back": "", "objective_ms": None}
"""Further fields of a version without problems."""


def test_models_are_listed_with_the_states_of_their_versions() -> None:
    """The default is the highest READY version; a version that failed gives the reason."""
    entries = [make_entry(1, ControlledEngine()), make_entry(2, reason="broken")]
    registry = make_registry({"m": entries, "none": [make_entry(7, reason="broken")]})
    plane = make_control_plane(registry, make_metrics())
    assert plane.limited_to(None).models() == {
        "models": [
            {
                "name": "m",
                "default_version": "1",
                "versions": [
                    {"version": "1", "state": "READY", "reason": "", **SOUND},
                    {"version": "2", "state": "UNAVAILABLE", "reason": "broken", **SOUND},
                ],
            },
            {
                "name": "none",
                "default_version": None,
                "versions": [{"version": "7", "state": "UNAVAILABLE", "reason": "broken", **SOUND}],
            },
        ]
    }
    assert plane.limited_to(None).index() == [
        {"name": "m", "version": "1", "state": "READY", "reason": ""},
        {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": "broken"},
        {
            "name": "none",
            "version": "7",
            "state": "UNAVAILABLE",
            "reason": "broken",
        },
    ]


def test_a_loaded_version_is_described_in_full() -> None:
    """Specs, metadata, providers, batching and profile are the engine's."""
    placement = Placement(("cuda", "cpu"), "cpu", (Fallback("cuda", "no GPU"),), {"cpu": 3})
    engine = ControlledEngine(
        [TensorSpec("x", "FP32", (None, "L")), TensorSpec("s", "seq(tensor(float))", None)],
        timeout=1.5,
        placement=placement,
    )
    entry = replace(make_entry(1, engine), batching_off="no gain", padding_off="no symbol")
    plane = make_control_plane(make_registry({"m": [entry]}), make_metrics())
    description = plane.limited_to(None).version("m", "1")
    assert json.loads(json.dumps(description)) == description, "plain values"
    assert (description["model"], description["version"]) == ("m", "1")
    assert description["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [None, "L"], "transportable": True},
        {
            "name": "s",
            "datatype": "seq(tensor(float))",
            "shape": None,
            "transportable": False,
        },
    ]
    assert description["outputs"][0]["name"] == "y"
    assert description["metadata"]["producer"] == "tests"
    assert description["metadata"]["opsets"] == {"": 21}
    assert description["providers"] == {
        "wanted": ["cuda", "cpu"],
        "active": "cpu",
        "fell_back": True,
        "device": "cpu",
        "fallbacks": [{"provider": "cuda", "reason": "no GPU"}],
        "nodes": {"cpu": 3},
    }
    assert description["batching"] == {
        "on": True,
        "reason": "no gain",
        "padding_off": "no symbol",
        "rows": describe_rows(NOT_READ),
        "exact": False,
        "exact_reason": str(NOT_READ),
        "max_batch_size": 32,
        "max_queue_size": 16_384,
        "max_queue_seconds": 10.0,
        "max_queue_delay_ms": 0,
    }
    assert description["timeout_ms"] == 1500
    assert description["profile"]["chosen_rows"] == 32


def test_what_the_graph_proves_of_rows_is_described() -> None:
    """Row axes are listed, null for an array of the whole run; otherwise the node is named."""
    shared = RowVerdict(
        RowKind.SHARED,
        inputs={"x": 1, "rate": None},
        outputs={"y": OutputRows(0, 2), "seen": None},
    )
    assert describe_rows(shared) == {
        "verdict": "shared",
        "reason": "",
        "to_batch": "",
        "node": "",
        "node_name": "",
        "node_path": [],
        "input_axes": {"x": 1, "rate": None},
        "output_axes": {"y": 0, "seen": None},
        "requests": [],
        "other_requests": [],
    }
    kind = RequestKind({"x": (3, 1), "rate": ()}, {"rate": (16000,)})
    of_one_kind = replace(shared, requests=(kind,))
    assert describe_rows(of_one_kind)["requests"] == [
        {"shapes": {"x": (3, 1), "rate": ()}, "values": {"rate": (16000,)}}
    ]
    assert str(of_one_kind).endswith("in requests of these sizes only: 'x' [3, 1], 'rate' 16000")
    assert str(shared) == "rows do not influence each other in requests of equal 'rate'"
    refuted = RowVerdict(
        RowKind.REFUTED,
        "ReduceMax 'low'",
        "it takes the largest",
        {"x": 0},
        place=NodePlace((4, 0, 1), "low"),
    )
    assert describe_rows(refuted) == {
        "verdict": "refuted",
        "reason": "rows may influence each other; ReduceMax 'low': it takes the largest",
        "to_batch": row_advice(refuted),
        "node": "ReduceMax 'low'",
        "node_name": "low",
        "node_path": [4, 0, 1],
        "input_axes": {},
        "output_axes": {},
        "requests": [],
        "other_requests": [],
    }


def test_a_version_without_an_engine_has_only_its_state() -> None:
    """There is nothing to describe of a model that could not be opened."""
    plane = make_control_plane(
        make_registry({"m": [make_entry(1, reason="broken")]}), make_metrics()
    )
    assert plane.limited_to(None).version("m", "1") == {
        "model": "m",
        "version": "1",
        "state": "UNAVAILABLE",
        "reason": "broken",
        **SOUND,
    }
    assert plane.limited_to(None).model("m")["versions"] == [
        {"version": "1", "state": "UNAVAILABLE", "reason": "broken", **SOUND}
    ]


def test_a_profile_says_what_runs_on_the_loop_on_the_cpu_only() -> None:
    """Rows whose run takes at most 0.2 ms; none on another device."""
    profile = batching_of(ControlledEngine()).profile
    assert describe_profile(profile, "cpu")["seconds_by_rows"] == {"1": 0.0001, "32": 0.001}
    assert describe_profile(profile, "cpu")["inline_up_to_rows"] == 1
    assert describe_profile(profile, "cuda:0")["inline_up_to_rows"] == 0


async def test_a_model_shows_its_rollout() -> None:
    """A model without a rollout does not show one."""
    registry = make_registry(
        {"m": [make_entry(n, ControlledEngine()) for n in (1, 2)], "other": [make_entry(1)]}
    )
    rollouts = make_rollouts(registry)
    rollouts.apply(
        parse_rollouts(
            "m: {variants: {a: {version: 1, weight: 9}, b: {version: 2, weight: 1}}}",
            "rollouts.yaml",
        )
    )
    plane = make_control_plane(registry, make_metrics(), rollouts)
    assert [one["name"] for one in plane.limited_to(None).model("m")["rollout"]["variants"]] == [
        "a",
        "b",
    ]
    assert "rollout" not in plane.limited_to(None).model("other")
    assert list(await plane.rollouts()) == ["m"]
    assert plane.rollout("m") == plane.limited_to(None).model("m")["rollout"]
    rollouts.close()


def test_served_models_are_the_ready_versions() -> None:
    """Each has its specs and an example; the same tuple is returned until the catalog changes."""
    example: Arrays = {"x": np.ones((1, 2), np.float32)}
    entries = [
        make_entry(1, ControlledEngine(example=example)),
        make_entry(2, ControlledEngine()),
        make_entry(3, ControlledEngine(), state=State.UNLOADING),
        make_entry(4),
    ]
    registry = make_registry({"m": entries})
    plane = make_control_plane(registry, make_metrics())
    served = plane.limited_to(None).served()
    assert [(one.model, one.version, one.default) for one in served] == [
        ("m", "1", False),
        ("m", "2", True),
    ]
    assert served[0].example is example
    assert served[1].example is None
    assert plane.limited_to(None).served() is served
    registry.catalog = make_catalog({"m": entries[:1]})
    assert [(one.version, one.default) for one in plane.limited_to(None).served()] == [("1", True)]


def test_unknown_names_are_not_found() -> None:
    """Each description raises the error, with the available names."""
    plane = make_control_plane(
        make_registry({"digits": [make_entry(1, ControlledEngine()), make_entry(2)]}),
        make_metrics(),
    )
    with pytest.raises(ModelNotFound, match="model 'nope' not found; available: digits"):
        plane.limited_to(None).model("nope")
    with pytest.raises(
        VersionNotFound, match="version '9' of model 'digits' not found; available: 1, 2"
    ):
        plane.limited_to(None).version("digits", "9")
    assert plane.limited_to(None).ready("digits") == "1"
    with pytest.raises(NotReady):
        plane.limited_to(None).ready("digits", "2")
