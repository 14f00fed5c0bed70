"""One request of any protocol, from what was sent to its answer.

A wire gives what it knows of who asks, what makes a `Call` of a body, and a reply. The `Exchange`
between them is the same for all: read, choose a version, wait for one that is loaded on demand,
decode, queue, write, and end once, with an answer or an error. What is short runs on the event loop
at once; what takes long goes to a thread and comes back. Small requests that can be answered with
others never get here: `cohort.serving.coalescing`.
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
from cohort.serving.lease import Lease
from cohort.serving.plane import DataPlane
from cohort.serving.request_context import RequestContext
from cohort.serving.work import WorkElsewhere
from cohort.tensors import Arrays

TEXT_BYTES = 16
"""What a value takes as text, about: it is not known before it is written."""

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
B = TypeVar("B")


class Call(Protocol[A_co]):
    """A parsed inference request of one API, whose answers are written as it asks.

    `decode` and `encode` use only the call and its lease, so they may run on any thread.

    model: The model's name; None where the request names none.
    version: The version that the request pins; None where it pins none.
    label: The variant that the request pins; None where it pins none.
    timeout: The caller's limit, in seconds; None where it gave none.
    """

    model: str | None
    version: str | None
    label: str | None
    timeout: float | None

    @property
    def beside(self) -> int:
        """The bytes that `decode` reads from elsewhere than the body."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """The request's parameters by name."""

    def decode_work(self, lease: Lease) -> int:
        """How long `decode` takes after a body that was not large, as bytes of JSON do."""

    def is_large(self, outputs: Outputs) -> bool:
        """Whether `encode` takes long."""

    def decode(self, lease: Lease) -> Arrays:
        """Turn the request's inputs into arrays. Raises InvalidInput."""

    def encode(self, lease: Lease, outputs: Outputs) -> A_co:
        """Write the answer. Raises InferenceFailed for an output that cannot be written."""


class ReplyTo(Protocol[A_contra]):
    """Where an answer goes: in parts, and then its end."""

    def part(self, answer: A_contra) -> None:
        """Send a part of the answer; a batched model's has one."""

    def end(self, error: CohortError | None) -> None:
        """End the answer, or refuse the request where there was no part."""


class Exchange(WorkElsewhere, Generic[A]):
    """One request and its answer. All methods are called on the event loop.

    plane: Answers it, as far as its caller may see it.
    context: Who sends it.
    reply: Gets the answer, unless the request is left before.
    hold: What it holds of the process's memory; whoever gave it takes that back.
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
        self._timeout: float | None = None
        self._long = self._short = False
        self._gaps = False  # whether its inputs have NaN for missing values

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
        """Make a call of what was sent, and go on with it.

        read: Makes the call. Raises InvalidInput.
        sent: What it makes it of.
        model, version: What is asked for, as far as that is known before.
        short: Whether decoding cannot take long, whatever is in it.
        long: Whether reading takes long: then a thread reads, and decodes, too.
        """
        plane = self.plane
        self._short, self._long = short, long
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
        """Nobody waits for the answer: stop what can be stopped, and tell nobody.

        error: What ended it; default None: its caller left. After the end this does nothing.
        """
        if self.left:
            return
        self._stop_work()
        if self.lease is not None:
            self.lease.leave()
            self.lease.close(error or Cancelled("the caller left"), self.hold)

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        if self.left:
            return
        self.left = True
        if self._gaps and isinstance(error, NotInJson):
            error = InvalidInput(f"{error}: the request has missing values, and this comes of them")
        known = known_error(error)
        if self.lease is not None:
            self.lease.close(known, self.hold)  # which has the error say whose it is
        self.reply.end(known)

    # -- step by step

    def _refuse(self, model: str | None, error: Exception) -> None:
        """End it with an error that was found before a version was chosen."""
        if isinstance(error, CohortError):
            self.plane.refused(model, error)
        self.fail(error)

    def _begin(self, call: Call[A]) -> None:
        self._call, self._timeout = call, call.timeout
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
        """A model was loaded meanwhile, which took some of the caller's time."""
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
        hold, timeout = self.hold, self._timeout
        if hold.size or self._long:
            hold.set(max(hold.size, count_bytes(arrays.values())))
        deadline = self.context.deadline
        if deadline is not None:
            left = deadline - monotonic()
            timeout = left if timeout is None else min(timeout, left)
        self.plane.observer.queued(self.context, lease.served)
        lease.submit(arrays, self._ran, timeout=timeout)

    def _ran(self, outputs: Outputs | None, error: CohortError | None) -> None:
        lease, call = self.lease, self._call
        if outputs is None or lease is None:
            self.fail(error or InferenceFailed("no answer"))
            return
        self.plane.observer.ran(self.context, lease.served)
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
        """Hold the outputs and what is written of them, in place of the inputs.

        Raises Overloaded where other answers wait to be read that leave no room for this one.
        """
        self.hold.set(0)
        self.plane.memory.check_answer(size)
        self.hold.set(size)

    def _answer(self, answer: A) -> None:
        if self.lease is not None:
            self.lease.close()
        self.reply.part(answer)
        self.reply.end(None)
        self.left = True  # not before: what cannot be sent fails


class AwaitedReply(Generic[A]):
    """A reply for who awaits the answer, in `answer`; it raises the error."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._part: Any = None
        self._forgotten = False

    def part(self, answer: A) -> None:
        """As `ReplyTo.part`; the answer has one."""
        self._part = answer

    def end(self, error: CohortError | None) -> None:
        """As `ReplyTo.end`."""
        if self._forgotten or self.answer.done():
            return
        if error is None:
            self.answer.set_result(self._part)
        else:
            self.answer.set_exception(error)

    def forget(self) -> None:
        """Let go of the answer, which was awaited or is not wanted any more.

        An error knows the exchange by the frames that it came through, and the exchange its reply:
        a reference cycle, with the whole request in it.
        """
        self._forgotten = True
        del self.answer
