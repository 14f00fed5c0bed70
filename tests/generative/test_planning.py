"""Decisions of continuous batching, for any sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cohort.generative.planning import (
    GROWTH,
    TILE,
    PromptBudget,
    Turns,
    fill_holes,
    grow,
    has_room_for_prompt,
    lacking_by_caller,
    needed,
    next_chunks,
    next_to_enter,
    who_leaves_for,
)


@dataclass(frozen=True, slots=True)
class Some:
    """A sequence. Implements `Planned`."""

    caller: str = ""
    priority: int = 0
    arrived: float = 0.0
    prompt: int = 10
    body: int = 0
    answer: int = 0
    most: int = 100
    cached: int = 0
    reserved: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.answer

    @property
    def limit(self) -> int:
        return self.prompt + self.most


@st.composite
def some(draw: st.DrawFn) -> Some:
    prompt, most = draw(st.integers(1, 300)), draw(st.integers(1, 200))
    answer = draw(st.integers(0, most - 1))
    one = Some(
        draw(st.sampled_from("abc")),
        draw(st.integers(-1, 1)),
        draw(st.integers(0, 50)),
        prompt,
        0,
        answer,
        most,
        draw(st.integers(0, prompt + answer)),
    )
    return replace(one, reserved=draw(st.integers(prompt, one.limit)))


def sequences(least: int = 0) -> st.SearchStrategy[list[Some]]:
    return st.lists(some(), min_size=least, max_size=12)


def order(running: Sequence[Some]) -> list[int]:
    return sorted(range(len(running)), key=lambda i: (-running[i].priority, running[i].arrived, i))


@given(sequences(), st.integers(0, 500))
def test_growth_never_exceeds_the_budget(running: list[Some], free: int) -> None:
    """Reserved and free tokens are as many as before, and each sequence that stays may continue."""
    found = grow(running, free)
    stays = [i for i in range(len(running)) if i not in found.out]
    reserved = sum(found.grown.get(i, running[i].reserved) for i in stays)
    assert found.free >= 0
    assert reserved + found.free == sum(one.reserved for one in running) + free
    assert all(found.grown.get(i, running[i].reserved) >= running[i].total for i in stays)
    assert all(running[i].reserved < found.grown[i] <= running[i].limit for i in found.grown)
    assert len(set(found.out)) == len(found.out)
    assert not set(found.out) & set(found.grown)


@given(sequences(1), st.integers(0, 50))
def test_the_oldest_of_the_highest_priority_always_goes_on(running: list[Some], free: int) -> None:
    """If the budget holds it alone, the first sequence never leaves, so each ends at some time."""
    first = order(running)[0]
    alone = free + sum(one.reserved for one in running)
    if running[first].total <= alone:
        assert first not in grow(running, free).out


@given(sequences(1), st.integers(0, 50))
def test_nobody_leaves_for_one_who_comes_later(running: list[Some], free: int) -> None:
    """A sequence that leaves comes after all that grew, but for itself."""
    found = grow(running, free)
    places = {position: place for place, position in enumerate(order(running))}
    for out in found.out:
        assert all(places[other] < places[out] for other in found.grown)


def test_a_sequence_reserves_a_part_of_its_answer() -> None:
    """It reserves its prompt and a few tokens, at most what it may become."""
    assert needed(Some(prompt=10, most=1000)) == 10 + GROWTH
    assert needed(Some(prompt=10, most=5)) == 15


@given(sequences(1), sequences())
def test_callers_take_turns(waiting: list[Some], running: list[Some]) -> None:
    """Of the highest priority, a caller with the fewest running sequences goes first."""
    one = waiting[next_to_enter(waiting, running, {})]
    count = {caller: sum(r.caller == caller for r in running) for caller in "abc"}
    assert one.priority == max(other.priority for other in waiting)
    same = [other for other in waiting if other.priority == one.priority]
    assert count[one.caller] == min(count[other.caller] for other in same)


def test_a_short_prompt_is_not_behind_all_long_ones_of_its_caller() -> None:
    """Of each caller, every second one that enters is the shortest; the others are the oldest."""
    waiting = [Some(arrived=at, prompt=1000) for at in range(100)] + [Some(arrived=100)]
    assert next_to_enter(waiting, [], {"b": 1}) == 0
    assert next_to_enter(waiting, [], {"": 1}) == 100


def test_a_caller_with_many_makes_room_for_one_without_any() -> None:
    """The youngest of its sequences leaves; at equal shares no sequence does."""
    running = [Some("greedy", arrived=at) for at in range(3)]
    assert who_leaves_for(Some("new"), running) == 2
    assert who_leaves_for(Some("greedy"), running) is None
    assert who_leaves_for(Some("new"), [Some("a"), Some("b")]) is None


@given(some(), sequences())
def test_taking_a_place_ends(entering: Some, running: list[Some]) -> None:
    """One that left does not take the place back from the one that came."""
    leaves = who_leaves_for(entering, running)
    if leaves is None:
        return
    left = running[leaves]
    assert left.priority <= entering.priority
    after = [*running[:leaves], *running[leaves + 1 :], entering]
    back = who_leaves_for(left, after)
    assert back is None or after[back] is not entering or left.caller == entering.caller


def divided(running: list[Some], unit: int) -> list[Some]:
    """Give prompts their bodies, and let parts of some be computed."""
    found = []
    for one in running:
        body = max(one.prompt - 2, 0) // unit * unit
        found.append(replace(one, body=body, cached=min(one.cached // unit * unit, body)))
    return found


@given(
    sequences(),
    st.sampled_from([8, 128]),
    st.integers(0, 64),
    st.integers(0, 128),
    st.integers(0, 128),
    st.dictionaries(st.sampled_from("abc"), st.builds(Turns, st.integers(0, 9), st.integers(0, 9))),
)
def test_a_step_computes_a_bounded_part_of_prompts(
    running: list[Some], unit: int, short: int, part: int, whole: int, turns: dict[str, Turns]
) -> None:
    """Short prompts are whole, and parts of long ones have at most the budget's tokens.

    The first one is exempt: it may be a short prompt, a unit, or a rest behind a body.
    """
    running = divided(running, unit)
    chunks = next_chunks(running, unit, short, PromptBudget(part, whole), turns)
    at = {i: one.cached for i, one in enumerate(running)}
    computed: dict[int, int] = {}
    for i, stop in chunks:
        one = running[i]
        assert at[i] < stop == one.prompt or (at[i] < stop <= one.body and stop % unit == 0)
        computed[i] = computed.get(i, 0) + stop - at[i]
        at[i] = stop
    for i, tokens in computed.items():
        lacks = running[i].prompt - running[i].cached
        assert lacks > short or tokens == lacks
        before = sum(list(computed.values())[: list(computed).index(i)])
        most = whole if lacks <= short else part
        assert most
        assert before + tokens <= most or (not before and tokens <= max(short, unit + 1))
    shorts = [one for one in running if one.prompt - one.cached <= short]
    assert bool(chunks) == bool((whole and shorts) or (part and len(shorts) < len(running)))


@example(33, [])
@given(st.integers(1, 300), st.lists(st.integers(8, 128)))
def test_no_run_has_one_token_more_than_a_tile(prompt: int, budgets: list[int]) -> None:
    """Kernels give such a token other bits, so it is computed with others, or always alone."""
    one = divided([Some("a", prompt=prompt)], 8)[0]
    sizes = []
    for budget in [*budgets, *[128] * 40]:
        for _, stop in next_chunks([one], 8, 64, PromptBudget(budget, budget), {}):
            sizes.append(stop - one.cached)
            one = replace(one, cached=stop)
    assert sum(sizes) == prompt
    assert prompt == 1 or all(size % TILE != 1 for size in sizes)


def test_prompts_of_callers_are_computed_in_turn() -> None:
    """A caller whose prompt was computed last comes after the others."""
    running = [Some("a", prompt=500, body=448), Some("b", prompt=500, body=448)]
    budget = PromptBudget(64, 64)
    turns = {"a": Turns(1, 1), "b": Turns(0.5)}
    assert next_chunks(running, 64, 32, budget, turns)[0].sequence == 1
    assert next_chunks(running, 64, 32, budget, {**turns, "b": Turns(2, 1)})[0].sequence == 0


def test_prompts_of_a_higher_priority_are_computed_first() -> None:
    """The turns of callers count within a priority."""
    running = [Some("a", prompt=9), Some("b", priority=1, prompt=9)]
    turns = {"a": Turns(1), "b": Turns(5)}
    assert next_chunks(running, 8, 32, PromptBudget(8, 8), turns)[0].sequence == 1


@pytest.mark.parametrize("count", [0, 1])
def test_every_second_turn_of_a_caller_is_its_oldest_prompts(count: int) -> None:
    """It does not depend on the turns of other callers."""
    running = [Some("a", prompt=500, body=448, arrived=1), Some("a", prompt=9, arrived=2)]
    turns = {"a": Turns(4, count), "b": Turns(5, 7)}
    chunks = next_chunks(running, 64, 32, PromptBudget(64, 64), turns)
    assert chunks[0].sequence == count


def test_long_prompts_enter_next_to_short_ones_of_their_caller() -> None:
    """Only other long prompts keep them waiting, so that a flood of short ones does not."""
    long = Some(prompt=1000)
    assert has_room_for_prompt(long, lacking_by_caller([Some(prompt=100)] * 9, 128), 128)
    assert not has_room_for_prompt(long, lacking_by_caller([long], 128), 128)
    assert has_room_for_prompt(Some(prompt=100), lacking_by_caller([long], 128), 128)


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 256))
def test_moves_leave_no_holes_below_decoding_slots(
    decoding: set[int], others: set[int], tokens: int
) -> None:
    """After the moves, each slot below a decoding one is in use, and none is overwritten."""
    others -= decoding
    slots = set(decoding)
    for source, target in fill_holes(dict.fromkeys(decoding, tokens), decoding | others):
        assert source in slots
        assert target not in slots | others
        slots = (slots - {source}) | {target}
    assert len(slots) == len(decoding)
    assert set(range(max(slots, default=0))) <= slots | others


def test_a_long_sequence_moves_only_for_many_holes() -> None:
    """One hole costs less than a copy of its keys and values."""
    assert fill_holes({0: 5, 2: 1000}, {0, 2}) == []
    assert fill_holes({4: 1000}, {4}) == [(4, 0)]
    assert fill_holes({1: 5, 3: 1000}, {1, 3}) == []
