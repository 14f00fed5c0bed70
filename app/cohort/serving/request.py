"""One request of any protocol, from its bytes to its answer.

A wire provides the request's context, a function that makes a `Call` of a body, and a reply. The
`Exchange` takes the same steps for every wire. It reads, chooses a version, waits for one that is
loaded on demand, decodes, queues and writes. It ends once, with an answer or an error. Short work
runs on the event loop; long work runs on a thread. Small requests that can be answered together use
`cohort.serving.coalescing` instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from cohort.batching import Outputs
from cohort.codec import LARGE_BYTES
from cohort.codec.codec_thread import codec_thread, decoding
from cohort.codec.json_outputs import NotInJson
from cohort.codec.missing_values import take_gaps
from cohort.connections.memory import SMALL_BYTES, MemoryHold, count_bytes, count_values
from cohort.errors import Cancelled, CohortError, InferenceFailed, InvalidInput, NotLoaded
from cohort.observability.refusals import known_error
from cohort.observability.tracing import set_current
from cohort.serving.lease import Lease
from cohort.serving.plane import DataPlane
from cohort.serving.request_context import RequestContext
from cohort.serving.work import WorkElsewhere
from cohort.tensors import Arrays

TEXT_BYTES = 16
"""Estimated bytes of a value written as text: the size is unknown before it is written."""

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
B = TypeVar("B")


class Call(Protocol[A_co]):
    """A parsed inference request of one API, which also writes its answer.

    `decode` and `encode` use only the call and its lease, so they may run on any thread.

    model: The model's name; None if the request names no model.
    version: The version that the request pins; None if it pins no version.
    label: The variant that the request pins; None if it pins no variant.
    timeout: The caller's limit, in seconds; None if it set no limit.
    """

    model: str | None
    version: str | None
    label: str | None
    timeout: float | None

    @property
    def beside(self) -> int:
        """The bytes that `decode` reads from outside the body."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """The request's parameters by name."""

    def decode_work(self, lease: Lease) -> int:
        """Return the cost of `decode` after a body that was not large, in bytes of JSON."""

    def is_large(self, outputs: Outputs) -> bool:
        """Return True if `encode` takes long."""

    def decode(self, lease: Lease) -> Arrays:
        """Turn the request's inputs into arrays. Raises InvalidInput."""

    def encode(self, lease: Lease, outputs: Outputs) -> A_co:
        """Write the answer. Raises InferenceFailed for an output that cannot be written."""


class ReplyTo(Protocol[A_contra]):
    """Receives an answer: its parts, and then its end."""

    def part(self, answer: A_contra) -> None:
        """Send a part of the answer; the answer of a batched model has one part."""

    def end(self, error: CohortError | None) -> None:
        """End the answer, or refuse the request if no part was sent."""


class Exchange(WorkElsewhere, Generic[A]):
    """One request and its answer. All methods are called on the event loop.

    plane: Answers the request, as a view for its caller.
    context: The request's context.
    reply: Receives the answer, unless the request is left before.
    hold: The request's share of the process's memory; the code that made the hold releases it.
    lease: Its hold on the version that answers; None until one is chosen.
    """

    def __init__(
        self, plane: DataPlane, context: RequestContext, reply: ReplyTo[A], hold: MemoryHold
    ) -> None:
        self.plane = plane
        self.context = context
        self.reply = reply
        self.hold = hold
        self.lease: Lease | None = None
        self._call: Call[A]
        self._model: str | None = None
        self._timeout: float | None = None
        self._long = self._short = False
        self._gaps = False  # True if its inputs have NaN for missing values

    def read(
        self,
        read: Callable[[B], Call[A]],
        sent: B,
        *,
        model: str | None,
        version: str | None = None,
        short: bool = False,
        long: bool = False,
    ) -> None:
        """Make a call of the request, and continue with it.

        read: Makes the call. Raises InvalidInput.
        sent: The argument of `read`.
        model, version: The requested model and version, if they are known before.
        short: True if decoding is fast for any content.
        long: True if reading takes long: then reading and decoding run on a thread.
        """
        plane = self.plane
        self._short, self._long, self._model = short, long, model
        if self.context.span is not None:
            self.context.span.decoding()
        try:
            if long:
                plane.begin_reading(model, version, self.context.priority)
            else:
                call = read(sent)
        except CohortError as error:
            self._refuse(model, error)
        except Exception as bug:  # noqa: BLE001 - whatever it is, the caller gets a response
            self.fail(bug)
        else:
            if long:
                failed = partial(self._refuse, model)
                stage, ends = codec_thread.first_stage, plane.end_reading
                self._run_in(stage, read, sent, then=self._begin, failed=failed, ends=ends)
            else:
                self._begin(call)

    def leave(self, error: CohortError | None = None) -> None:
        """Stop all work that can be stopped, and send no answer. After the end this does nothing.

        error: The cause; default None: the client disconnected.
        """
        if self.left:
            return
        self._stop_work()
        if self.lease is not None:
            self.lease.leave()
            self.lease.close(error or Cancelled("the client disconnected or cancelled"), self.hold)

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        if self.left:
            return
        self.left = True
        if self._gaps and isinstance(error, NotInJson):
            error = InvalidInput(
                f"{error}: missing values in the request's inputs may be the cause"
            )
        known = known_error(error)
        if self.lease is not None:
            self.lease.close(known, self.hold)  # adds the version to the error's log lines
        elif self.context.span is not None:
            self.context.span.refused(self._model, known.code)
        self.reply.end(known)

    # -- steps, in order

    def _refuse(self, model: str | None, error: Exception) -> None:
        """End the request with an error that was found before a version was chosen."""
        if isinstance(error, CohortError):
            self.plane.refused(model, error)
        self.fail(error)

    def _begin(self, call: Call[A]) -> None:
        self._call, self._timeout, self._model = call, call.timeout, call.model
        self.plane.observer.began(self.context)
        try:
            self._decode(self._pick())
        except NotLoaded as error:
            waiting = self.plane.pick_loaded(error, self._pick, call.timeout, self.context.priority)
            self._after(asyncio.get_running_loop().create_task(waiting), self._picked)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a response
            self.fail(error)

    def _pick(self) -> Lease:
        call = self._call
        lease = self.lease = self.plane.pick(
            call.model,
            call.version,
            label=call.label,
            context=self.context,
            parameters=call.parameters,
        )
        return lease

    def _picked(self, picked: tuple[Lease, float | None]) -> None:
        """Continue after a model was loaded, with the rest of the caller's time."""
        lease, self._timeout = picked
        self._decode(lease)

    def _decode(self, lease: Lease) -> None:
        call = self._call
        if beside := call.beside:
            self.hold.add(beside)
        work = 0 if self._short and not beside else call.decode_work(lease)
        if self._long or work > LARGE_BYTES:
            self._long = True
            lease.check_room()
            queue = partial(self._queue, lease)
            self._run_in(decoding(work), self._arrays, lease, then=queue)
        else:
            self._queue(lease, self._arrays(lease))

    def _arrays(self, lease: Lease) -> Arrays:
        """Decode the inputs, on any thread."""
        take_gaps()
        arrays = self._call.decode(lease)
        self._gaps = take_gaps()
        return arrays

    def _queue(self, lease: Lease, arrays: Arrays) -> None:
        hold, timeout = self.hold, self._time_left()
        if hold.size or self._long:
            hold.set(max(hold.size, count_bytes(arrays.values())))
        self.plane.observer.queued(self.context, lease.served)
        if (span := self.context.span) is None:
            lease.submit(arrays, self._ran, timeout=timeout)
        else:
            with set_current(span):
                lease.submit(arrays, self._ran, timeout=timeout)

    def _time_left(self) -> float | None:
        """Return the caller's limit in seconds; None if it set none."""
        timeout, deadline = self._timeout, self.context.deadline
        if deadline is not None:
            left = deadline - monotonic()
            timeout = left if timeout is None else min(timeout, left)
        return timeout

    def _ran(self, outputs: Outputs | None, error: CohortError | None) -> None:
        lease, call = self.lease, self._call
        if lease is not None and (outputs is not None or lease.times is not None):
            self.plane.observer.ran(self.context, lease)
        if outputs is None or lease is None:
            self.fail(error or InferenceFailed("no answer"))
            return
        try:
            large, size = call.is_large(outputs), count_bytes(outputs)
            if large or self.hold.size or size > SMALL_BYTES:
                self._hold_answer(size + TEXT_BYTES * count_values(outputs) if large else size)
            if large:
                stage = codec_thread.later_stage
                self._run_in(stage, call.encode, lease, outputs, then=self._answer)
            else:
                self._answer(call.encode(lease, outputs))
        except Exception as failure:  # noqa: BLE001 - whatever it is, the caller gets a response
            self.fail(failure)

    def _hold_answer(self, size: int) -> None:
        """Hold memory for the outputs and their encoding instead of the inputs.

        Raises Overloaded if other unread answers leave no room for this one.
        """
        self.hold.set(0)
        self.plane.memory.check_answer(size)
        self.hold.set(size)

    def _answer(self, answer: A) -> None:
        if self.lease is not None:
            self.lease.close()
        self.reply.part(answer)
        self.reply.end(None)
        self.left = True  # last: an answer that cannot be sent fails


class AwaitedReply(Generic[A]):
    """A reply to await: `answer` is a future that has the result or raises the error."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._part: Any = None
        self._forgotten = False

    def part(self, answer: A) -> None:
        """Keep the only part of the answer."""
        self._part = answer

    def end(self, error: CohortError | None) -> None:
        """Set the result or the error of `answer`."""
        if self._forgotten or self.answer.done():
            return
        if error is None:
            self.answer.set_result(self._part)
        else:
            self.answer.set_exception(error)

    def forget(self) -> None:
        """Release the answer after it was awaited, or if it is not needed.

        An error refers to the exchange through its traceback, and the exchange refers to its reply.
        This reference cycle would keep the whole request in memory.
        """
        self._forgotten = True
        del self.answer
