"""Requests to language models: one flow from the body to the last piece."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cohort.errors import InvalidInput
from cohort.metrics import Metrics
from tests.aviary import Aviary, open_aviary
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.parrot_callers import ask
from tests.planes import make_data_plane
from tests.waiting import iterations


@pytest.fixture
async def aviary(tmp_path: Path) -> AsyncIterator[Aviary]:
    async with open_aviary(tmp_path) as aviary:
        yield aviary


async def test_an_answer_comes_in_parts_and_ends_once(aviary: Aviary) -> None:
    """A call receives the prepared prompt, then each piece, then the number of tokens."""
    _, heard = ask(aviary, "one two three")
    await heard.over.wait()
    assert heard.parts == ["[3]", "one", " two", " three", "[3]"]
    assert heard.error is None
    assert aviary.parrot.leases.count == 0


async def test_a_caller_who_leaves_gets_nothing_more(aviary: Aviary) -> None:
    """`leave` cancels the engine's work and releases the version."""
    _, heard = ask(aviary, "a " * 60, leave_after=4)
    await heard.over.wait()
    assert aviary.parrot.said[0].cancelled
    assert aviary.parrot.leases.count == 0
    await iterations(3)
    assert len(heard.parts) == 4


async def test_a_refused_prompt_is_an_error_without_parts(aviary: Aviary) -> None:
    """The error names the field of the request."""
    _, heard = ask(aviary, "a " * 64)
    await heard.over.wait()
    assert heard.parts == []
    assert isinstance(heard.error, InvalidInput)
    assert heard.error.parameter == "prompt"


def test_an_engine_of_tensors_has_no_text() -> None:
    """A lease on another kind of model refuses requests for text, with the model's name."""
    registry = make_registry({"m": [make_entry(engine=ControlledEngine())]})
    plane = make_data_plane(registry, Metrics())
    with (
        plane.pick("m") as lease,
        pytest.raises(InvalidInput, match=r"m.* is not a language model"),
    ):
        lease.text  # noqa: B018 - raises
