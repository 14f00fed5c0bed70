"""Which run goes next, and where: the decision alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.scheduling import EXPRESS_RATIO, Choice, QueueHead, Slots, next_run

LONG, SHORT = 0.2, 0.001


def head(
    arrived: float, seconds: float = LONG, *, shadow: bool = False, on: str = "cpu"
) -> QueueHead:
    return QueueHead(arrived, seconds, on, shadow)


FREE = Slots(1, express=True, running=[LONG])
FULL = Slots(0, express=True, running=[LONG, LONG])
TAKEN = Slots(0, express=False, running=[LONG, LONG, SHORT])


@pytest.mark.parametrize(
    ("heads", "cpu", "expected"),
    [
        ([], FREE, None),
        ([head(2), head(1), head(3)], FREE, Choice(1, express=False)),
        ([head(1, shadow=True), head(2)], FREE, Choice(1, express=False)),
        ([head(1, shadow=True)], FREE, Choice(0, express=False)),
        ([head(1), head(2, SHORT)], FULL, Choice(1, express=True)),
        ([head(2, SHORT), head(1, SHORT)], FULL, Choice(1, express=True)),
        ([head(1), head(2, LONG / EXPRESS_RATIO * 1.01)], FULL, None),
        ([head(1), head(2, LONG / EXPRESS_RATIO)], FULL, Choice(1, express=True)),
        ([head(1, SHORT)], TAKEN, None),
        ([head(1, SHORT)], Slots(0, express=False, running=[LONG, LONG]), None),
        ([head(1, SHORT, shadow=True)], FULL, None),
        ([head(1, SHORT)], Slots(0, express=True, running=[LONG, SHORT]), None),
        ([head(1)], FULL, None),
    ],
    ids=[
        "nothing waits",
        "the oldest",
        "a shadow after everybody else",
        "a shadow when nobody else waits",
        "a short one passes a long one",
        "the oldest of two short ones",
        "not short enough",
        "just short enough",
        "the express slot is taken",
        "the express slot is taken by something long",
        "a shadow never takes the express slot",
        "short, but something as short is running",
        "no slot",
    ],
)
def test_next_run(heads: list[QueueHead], cpu: Slots, expected: Choice | None) -> None:
    """The oldest is first, shadows are last, and a much shorter run gets one more slot."""
    assert next_run(heads, {"cpu": cpu}) == expected


def test_devices_do_not_wait_for_each_other() -> None:
    """A full CPU does not delay the GPU, and a queue there does not delay a shadow here."""
    slots = {"cpu": FULL, "cuda": FREE}
    assert next_run([head(1), head(2, on="cuda")], slots) == Choice(1, express=False)
    slots = {"cpu": FREE, "cuda": TAKEN}
    heads = [head(1, on="cuda"), head(2, shadow=True)]
    assert next_run(heads, slots) == Choice(1, express=False)


heads = st.lists(
    st.builds(
        QueueHead,
        st.floats(0, 100),
        st.sampled_from([SHORT, 0.01, LONG]),
        st.sampled_from(["cpu", "cuda"]),
        st.booleans(),
    ),
    max_size=8,
)


@given(heads, st.integers(1, 3))
def test_slots_are_filled_and_never_exceeded(heads: list[QueueHead], count: int) -> None:
    """The choice continues until nothing may run: slots + 1 at most, never idle with a queue."""
    running: dict[str, list[tuple[float, bool]]] = {"cpu": [], "cuda": []}
    waiting = list(heads)
    while True:
        slots = {
            name: Slots(
                count - sum(not express for _, express in runs),
                not any(express for _, express in runs),
                [seconds for seconds, _ in runs],
            )
            for name, runs in running.items()
        }
        choice = next_run(waiting, slots)
        if choice is None:
            break
        chosen = waiting.pop(choice.head)
        here = running[chosen.device]
        if choice.express:
            assert not chosen.shadow
            assert all(chosen.seconds * EXPRESS_RATIO <= seconds for seconds, _ in here)
        if chosen.shadow:
            assert all(one.shadow for one in waiting if one.device == chosen.device)
        here.append((chosen.seconds, choice.express))
    for name, runs in running.items():
        ordinary = sum(not express for _, express in runs)
        assert ordinary <= count
        assert len(runs) - ordinary <= 1
        assert ordinary == count or not [one for one in waiting if one.device == name]
