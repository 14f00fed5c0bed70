"""Targets of coalesced requests: one version, or the versions of a rollout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from cohort.batching import Outputs
from cohort.errors import Cancelled, CohortError
from cohort.rollouts import CallerOutcome, LiveRollout
from cohort.serving.request_context import RequestContext
from cohort.serving.served import ServedVersion
from cohort.tensors import Array


class Chosen(NamedTuple):
    """The version that answers a request.

    served: The version.
    variant: The rollout's variant that chose it; "" without a rollout.
    limit: The rows that one run on the event loop may have.
    caller: A hash that identifies the caller; None: not known, or not needed.
    """

    served: ServedVersion
    variant: str
    limit: int
    caller: int | None


class Choosing(Protocol):
    """The part of a request that the choice needs."""

    @property
    def context(self) -> RequestContext:
        """The context of the request."""


class AnsweredGroup(Protocol):
    """The version that answered requests, and the variant that chose it."""

    served: ServedVersion
    variant: str


class Target:
    """The one version of a model without a rollout.

    fixed: The choice for every request; None if each request has its own choice.
    """

    __slots__ = ("fixed",)

    def __init__(self, fixed: Chosen | None) -> None:
        self.fixed = fixed

    def choose(self, request: Choosing) -> Chosen | None:
        """Return the version that answers a request; None if it must not be coalesced."""
        del request
        return self.fixed

    def answered(
        self,
        group: AnsweredGroup,
        members: Sequence[Any],
        gone: Collection[int],
        array: Array,
        outputs: Outputs,
        seconds: float,
        now: float,
    ) -> None:
        """Record requests that were answered `now`, `seconds` after the first was read.

        members: The requests, each as `cohort.serving.groups.Member`.
        gone: The positions of those whose callers left.
        array, outputs: The input and outputs of their run, with the rows in the members' order.
        """

    def failed(
        self,
        group: AnsweredGroup,
        members: Sequence[Any],
        array: Array,
        error: CohortError,
        seconds: float,
        now: float,
    ) -> None:
        """Record requests that all got the same error."""


class RolloutTarget(Target):
    """The versions of a model's rollout, for one iteration of the event loop.

    live: The rollout.
    ready: The versions that can serve.
    serve: Returns the served version of a number and its rows of a run; None if it is not
        coalesced.
    """

    __slots__ = ("_live", "_ready", "_serve", "_served")

    def __init__(
        self,
        live: LiveRollout,
        ready: Collection[int],
        serve: Callable[[int], tuple[ServedVersion | None, int]],
    ) -> None:
        super().__init__(None)
        self._live = live
        self._ready = ready
        self._serve = serve
        self._served: dict[int, tuple[ServedVersion | None, int]] = {}

    def choose(self, request: Choosing) -> Chosen | None:
        """Return the rollout's choice; None if that version is not ready or not coalesced."""
        live = self._live
        context = request.context
        sticky = live.rollout.sticky
        key = None if sticky is None else context.key_of(sticky) or None
        caller = context.peer if key is None else key
        variant = live.choose(key, self._ready)
        number = variant.version
        if number not in self._served:
            self._served[number] = self._serve(number) if number in self._ready else (None, 1)
        served, limit = self._served[number]
        if served is None:
            return None
        return Chosen(served, variant.name, limit, None if caller is None else hash(caller))

    def answered(
        self,
        group: AnsweredGroup,
        members: Sequence[Any],
        gone: Collection[int],
        array: Array,
        outputs: Outputs,
        seconds: float,
        now: float,
    ) -> None:
        """Count the answers as evidence, and copy the requests to the shadow."""
        served, live = group.served, self._live
        if live.shadow is not None and not gone:
            counts = [wanted.rows for _, wanted, _ in members]
            arrays = {served.inputs[0].name: array}
            live.copy_rows(int(served.version), arrays, served.outputs, outputs, counts)
        callers = [caller for _, _, caller in members]
        if gone:
            left = Cancelled("the client disconnected or cancelled")
            self._count(group, members, gone, array, outputs, left, seconds, now)
            callers = [caller for place, caller in enumerate(callers) if place not in gone]
        self._live.count_answers(group.variant, callers, seconds=seconds, now=now)

    def failed(
        self,
        group: AnsweredGroup,
        members: Sequence[Any],
        array: Array,
        error: CohortError,
        seconds: float,
        now: float,
    ) -> None:
        """Count the failures as evidence."""
        places = range(len(members))
        self._count(group, members, places, array, None, error, seconds, now)

    def _count(
        self,
        group: AnsweredGroup,
        members: Sequence[Any],
        places: Collection[int],
        array: Array,
        outputs: Outputs | None,
        error: CohortError,
        seconds: float,
        now: float,
    ) -> None:
        served, at = group.served, 0
        name = served.inputs[0].name
        for place, (_, wanted, caller) in enumerate(members):
            part = slice(at, at := at + wanted.rows)
            if place in places:
                given = None if outputs is None else [output[part] for output in outputs]
                self._live.count(
                    CallerOutcome(
                        group.variant, int(served.version), caller, {name: array[part]},
                        served.outputs, given, error, False, now, seconds,
                    )
                )  # fmt: skip
