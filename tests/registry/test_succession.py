"""Which versions take over from the ones before them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cohort.registry import ModelEntry, Source, State, VersionEntry, select_versions
from cohort.registry.succession import hold_back
from cohort.repository import Found, FoundModel, ModelConfig, Snapshot
from cohort.session import Signature
from cohort.tensors import TensorSpec

FP32, INT64 = (
    Signature([TensorSpec("x", datatype, ("N", 4))], [TensorSpec("y", "FP32", ("N", 3))])
    for datatype in ("FP32", "INT64")
)
signatures = st.dictionaries(st.integers(1, 30), st.sampled_from([FP32, INT64, None]), max_size=8)


def test_each_is_held_against_the_last_that_took_over() -> None:
    """Two versions that changed alike are both held back; one that went back is not."""
    held = hold_back({1: FP32, 2: INT64, 3: INT64, 4: FP32, 5: INT64})
    assert list(held) == [2, 3, 5]
    assert "is INT64, unlike FP32 in version 1" in held[3]
    assert "in version 4" in held[5]
    assert "allow_signature_change: true" in held[5]


@given(signatures)
def test_who_takes_over_never_depends_on_higher_versions(
    known: dict[int, Signature | None],
) -> None:
    """The lowest known one is never held back, and more above change nothing below."""
    held = hold_back(known)
    whole = [number for number in sorted(known) if known[number] is not None]
    assert not set(whole[:1]) & held.keys()
    for limit in known:
        lower = {n: one for n, one in known.items() if n <= limit}
        assert hold_back(lower) == {n: why for n, why in held.items() if n <= limit}
    free = [known[number] for number in whole if number not in held]
    assert len(set(map(str, free))) <= 1  # FP32's callers stay with FP32


def entry(number: int, state: State) -> VersionEntry:
    return VersionEntry(number, state, Source(Path("model.onnx"), "a", None))


def test_what_is_held_back_answers_where_nothing_else_can() -> None:
    """It answers once all the others have failed, and not while one of them loads."""
    files = {1: FP32, 2: INT64}
    ready = entry(2, State.READY)

    def default(first: State) -> VersionEntry | None:
        return ModelEntry("m", {1: entry(1, first), 2: ready}, files).default

    assert default(State.LOADING) is None
    assert default(State.READY) is not ready
    assert default(State.UNAVAILABLE) is ready


def test_a_version_held_back_leaves_the_former_one_wanted() -> None:
    """`versions: {latest: 1}` then loads both; without a difference it loads the highest alone."""

    def wanted(second: Signature) -> list[int]:
        found = {n: Found(Path("model.onnx"), Path(), "a") for n in (1, 2)}
        model = FoundModel("m", Path(), found, ModelConfig(), signatures={1: FP32, 2: second})
        return list(select_versions(Snapshot({"m": model}), {})["m"])

    assert wanted(INT64) == [1, 2]
    assert wanted(FP32) == [2]
