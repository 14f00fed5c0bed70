"""A request's hold on the version that answers it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from app.batching import Outputs, Ticket
from app.codec import is_coalescible
from app.errors import (
    Cancelled,
    CohortError,
    InvalidInput,
    NotReady,
    Overloaded,
    did_you_mean,
    quoted,
)
from app.metrics import VersionMetrics
from app.registry import Loaded
from app.rollouts import LiveRollout
from app.scheduling import INLINE_SECONDS
from app.tensors import Arrays, TensorSpec, check_inputs

if TYPE_CHECKING:
    from app.data_plane.plane import DataPlane

COALESCED_RUN_SECONDS = INLINE_SECONDS
"""How long runs at once may hold the loop; its sockets wait meanwhile."""

Reply = Callable[[Outputs | None, CohortError | None], None]


class Served:
    """One version as its requests see it, put together once. `sent` are the outputs sent unasked.

    `outputs` and `inputs` are in the model's order.
    """

    __slots__ = (
        "coalescible",
        "counts",
        "inputs",
        "loaded",
        "model",
        "outputs",
        "sent",
        "version",
    )  # fmt: skip

    def __init__(self, model: str, version: str, loaded: Loaded, counts: VersionMetrics) -> None:
        self.model = model
        self.version = version
        self.loaded = loaded
        self.counts = counts
        self.inputs: Sequence[TensorSpec] = loaded.session.inputs
        self.outputs: Sequence[TensorSpec] = loaded.session.outputs
        self.sent = [place for place, spec in enumerate(self.outputs) if spec.transportable]

        self.coalescible = is_coalescible(self.inputs, self.outputs)

    @property
    def coalesce_limit(self) -> int:
        """How many requests of one row may go as one: those that would run at once, on the loop.

        1 where they may not.
        """
        batcher = self.loaded.batcher
        policy = batcher.policy
        together = (
            self.coalescible
            and policy.batches
            and not policy.max_queue_delay_ms
            and batcher.padding is None
            and batcher.device == "cpu"
            and batcher.seconds_for(policy.max_batch_size) <= INLINE_SECONDS
        )
        return policy.max_batch_size if together else 1


class Lease:
    """One request's hold on one version, from the choice to the reply."""

    __slots__ = ("_live", "_loaded", "_plane", "_started", "_ticket", "served", "variant")

    def __init__(
        self, plane: DataPlane, served: Served, variant: str = "", live: LiveRollout | None = None
    ) -> None:
        self._started = monotonic()
        self._plane = plane
        self._loaded: Loaded | None = served.loaded
        self._ticket: Ticket | None = None
        self._live = live  # the rollout that chose, to learn from the answer
        self.served = served
        self.variant = variant

    @property
    def model(self) -> str:
        return self.served.model

    @property
    def version(self) -> str:
        return self.served.version

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        return self.served.inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        return self.served.outputs

    def submit(self, arrays: Arrays, reply: Reply, *, timeout: float | None = None) -> None:
        """Queue the request; `reply(outputs, error)` is called once, on the loop, unless it leaves.

        `outputs` come in the model's order. The smaller of `timeout` (seconds) and the model's own
        counts. Raises InvalidInput, Overloaded, NotReady or DeadlineExceeded.
        """
        loaded = self._loaded
        if loaded is None:
            raise NotReady("this lease is closed")
        check_inputs(self.served.inputs, arrays)
        limit = loaded.timeout if timeout is None else min(timeout, loaded.timeout)
        if self._live is not None:
            reply = self._live.observe_reply(
                self.variant,
                int(self.version),
                self.outputs,
                arrays,
                reply,
                started=self._started,
                tight_deadline=limit < loaded.timeout,
            )
        self._ticket = loaded.batcher.submit(arrays, reply, deadline=self._started + limit)

    async def infer(
        self,
        arrays: Arrays,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the batcher keeps it, for every face
    ) -> Outputs:
        """`submit` and wait. Raises as `submit` does, and InferenceFailed."""
        answer: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()

        def reply(outputs: Outputs | None, error: CohortError | None) -> None:
            if answer.done():
                return
            if outputs is None:
                answer.set_exception(error or CohortError("no answer"))
            else:
                answer.set_result(outputs)

        self.submit(arrays, reply, timeout=timeout)
        try:
            return await answer
        except asyncio.CancelledError:
            self.leave()
            raise

    def select(self, names: Sequence[str] | None) -> Sequence[int]:
        """The positions of the outputs asked for; where `names` is None, of all that can be sent.

        Raises InvalidInput for a name that is no output, or one whose kind cannot be sent, and for
        a model none of whose outputs can.
        """
        specs = self.served.outputs
        if names is None:
            if not self.served.sent and specs:
                specs[0].dtype  # noqa: B018 - raises
            return self.served.sent
        positions = {spec.name: position for position, spec in enumerate(specs)}
        for name in names:
            if name not in positions:
                raise InvalidInput(
                    f"there is no output {quoted(name)}{did_you_mean(name, positions)}"
                )
            specs[positions[name]].dtype  # noqa: B018
        return [positions[name] for name in names]

    @property
    def labels(self) -> Sequence[str]:
        """The names of the model's classes by index: its metadata property "classes", a JSON list.

        Empty where it has none.
        """
        return _labels(self.served.loaded.session.metadata.properties.get("classes", "[]"))

    @property
    def seconds(self) -> float:
        """How long the request has been here."""
        return monotonic() - self._started

    def leave(self) -> None:
        """The caller is gone: give its place up. The run stops if nobody else waits for it."""
        if self._ticket is not None:
            self._ticket.cancel()

    def close(self, error: BaseException | None = None) -> None:
        """Count the request by what the caller saw, and let the version go. Once."""
        loaded = self._loaded
        if loaded is None:
            return
        self._loaded = None
        self._plane.open_leases -= 1
        counts = self.served.counts
        seconds = monotonic() - self._started
        if error is None:
            counts.request(self.variant, "OK", seconds)
        else:
            counts.request(self.variant, _code(error), seconds)
            if isinstance(error, CohortError):
                error.about = {"model": self.model, "version": self.version}
                if self.variant:
                    error.about = {**error.about, "variant": self.variant}
            if isinstance(error, Overloaded | NotReady):
                counts.refuse(error.code)
        loaded.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)


class SharedLease:
    """The hold that several requests of one turn of the loop have on one version together.

    `started` is when the turn read the first of them, on the monotonic clock: all of them lay there
    already.
    """

    __slots__ = ("_open", "_plane", "count", "served", "started")

    def __init__(self, plane: DataPlane, served: Served, started: float, count: int) -> None:
        self._plane = plane
        self.served = served
        self.started = started
        self.count = count
        self._open = True
        plane.open_leases += count
        served.loaded.leases += count

    @property
    def seconds(self) -> float:
        """How long they have been here."""
        return monotonic() - self.started

    def submit(self, arrays: Arrays, reply: Reply, *, at_once: bool) -> None:
        """Run them as one, at once or, where others wait already, queued; as `Lease.submit`."""
        loaded, count = self.served.loaded, self.count
        batcher = loaded.batcher
        check_inputs(self.served.inputs, arrays)
        if at_once and batcher.run_at_once(
            arrays, reply, arrived=self.started, rows=count, requests=count
        ):
            return
        deadline = self.started + loaded.timeout
        batcher.submit(arrays, reply, deadline=deadline, requests=count)

    def give_up(self) -> None:
        """Let go, and count nothing: they go on alone. Nothing after `close`."""
        if self._open:
            self._open = False
            self._plane.open_leases -= self.count
            self.served.loaded.release(self.count)

    def close(self, error: BaseException | None = None, *, left: int = 0) -> None:
        """Count what each caller saw, of whom `left` saw nothing. Once, and not after `give_up`."""
        if not self._open:
            return
        seconds, counts = self.seconds, self.served.counts
        self.give_up()
        if error is not None:
            left = 0  # counted with the others, by what failed
        if isinstance(error, CohortError):
            error.about = {"model": self.served.model, "version": self.served.version}
        if left:
            counts.request("", Cancelled.__name__, seconds, left)
        if told := self.count - left:
            counts.request("", "OK" if error is None else _code(error), seconds, told)


def _labels(text: str) -> list[str]:
    try:
        classes = json.loads(text)
    except ValueError:
        return []
    return [str(one) for one in classes] if isinstance(classes, list) else []


def _code(error: BaseException) -> str:
    if isinstance(error, CohortError):
        return error.code
    return Cancelled.__name__ if isinstance(error, asyncio.CancelledError) else "InferenceFailed"
