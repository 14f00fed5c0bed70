"""The spans of one sampled request.

The SERVER span begins with the request. The spans below it are made when their stage has ended,
from times that the server takes anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from cohort.batching import Ran, Times
from cohort.observability.tracing.current import Attributes, StepReport

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span

    from cohort.observability.tracing.batches import BatchSpans

NANO = 1_000_000_000


class RequestSpan:
    """A sampled request. Every method is called on the event loop.

    trace_id, span_id: Its ids in hex, as logs and exemplars have them.

    batches: Makes the spans below this one.
    span: The SERVER span.
    context: Holds the SERVER span, as the parent of the spans below it.
    """

    __slots__ = (
        "_arrived", "_batches", "_decoding", "_ended", "_queued", "_ran", "_span", "_zero",
        "context", "span_id", "trace_id",
    )  # fmt: skip

    def __init__(self, batches: BatchSpans, span: Span, context: Context) -> None:
        ids = span.get_span_context()
        self.trace_id = f"{ids.trace_id:032x}"
        self.span_id = f"{ids.span_id:016x}"
        self._batches = batches
        self._span = span
        self.context = context
        self._arrived = monotonic()
        self._zero = time_ns() - int(self._arrived * NANO)
        self._decoding = self._queued = self._ran = 0.0
        self._ended = False

    # -- the stages of an exchange

    def decoding(self) -> None:
        """Note that the request was read, and is decoded now."""
        self._decoding = monotonic()

    def queued(self) -> None:
        """Note that its inputs are decoded, and queued now."""
        self._queued = monotonic()

    def ran(self, times: Times | None, model: str, version: str) -> None:
        """Add the stages until the end of its run.

        times: The waiting time, the run's time and the run; None: the answer needed no run.
        """
        self._ran = monotonic()
        self.stage("decode", self._decoding or self._arrived, self._queued)
        if times is None:
            self.stage("run", self._queued, self._ran, _of(model, version))
            return
        waited, seconds, _ = times
        began = min(self._queued + waited, self._ran)
        self.ran_from(self._queued, began, began + seconds, times, model, version)

    def answered(self, model: str, version: str, variant: str, code: str) -> None:
        """Add the last stage, and the version that answered; `code` is OK or the error's name."""
        now = monotonic()
        if self._ran:
            self.stage("encode", self._ran, now)
        elif self._queued:
            self.stage("decode", self._decoding or self._arrived, self._queued)
            self.stage("queue", self._queued, now, {"error.type": code})
        self.name_version(model, version, variant, code)

    def name_version(self, model: str, version: str, variant: str, code: str) -> None:
        """Set the version that answered, and the outcome."""
        self._span.set_attributes(_of(model, version))
        if variant:
            self._span.set_attribute("cohort.variant", variant)
        if code != "OK":
            self._span.set_attribute("error.type", code)

    def refused(self, model: str | None, code: str) -> None:
        """Set the requested model and the error of a request that no version takes."""
        self.set({"error.type": code})
        if model:
            self.set({"cohort.model": model})

    # -- the stages of a request that was answered with others

    def ran_from(
        self, queued: float, began: float, ended: float, times: Times, model: str, version: str
    ) -> None:
        """Add the time in the queue and the run, which is linked with its batch.

        All times are in seconds on the monotonic clock.
        """
        waited, seconds, ran = times
        attributes: dict[str, str | int | float] = {
            **_of(model, version),
            "cohort.queue.seconds": waited,
        }
        self.stage("queue", queued, began, {"cohort.queue.seconds": waited})
        if ran is None:
            self.stage("run", began, ended, attributes)
            return
        attributes["cohort.run.seconds"] = seconds
        self._linked("run", (began, ended), attributes, ran, (began, ended))

    # -- work below it

    def step(self, ended: StepReport) -> None:
        """Add a step of a pipeline that ends now."""
        now = monotonic()
        attributes: dict[str, str | int | float] = {
            "cohort.step": ended.step,
            **_of(ended.model, ended.version),
        }
        if ended.rows:
            attributes["cohort.rows"] = ended.rows
        if ended.code != "OK":
            attributes["error.type"] = ended.code
        name, began = f"step {ended.step}", now - ended.seconds
        if ended.times is None:
            self.stage(name, began, now, attributes)
            return
        waited, seconds, ran = ended.times
        attributes["cohort.queue.seconds"] = waited
        if ran is None:
            self.stage(name, began, now, attributes)
        else:
            run_began = began + waited
            self._linked(name, (began, now), attributes, ran, (run_began, run_began + seconds))

    def chosen(self, which: Sequence[bool]) -> RequestSpan:
        """See `WorkSpans`."""
        del which
        return self

    def shadow(self, version: int, began: float, code: str) -> None:
        """Add a shadow's run of its copy, which ends now."""
        attributes: dict[str, str | int | float] = {"cohort.model.version": str(version)}
        if code != "OK":
            attributes["error.type"] = code
        self.stage("shadow", began, monotonic(), attributes)

    def message(self, name: str) -> RequestSpan:
        """Begin the span of one message of this call."""
        span = self._start(name, monotonic(), {})
        return RequestSpan(self._batches, span, self._batches.under(span))

    def stage(
        self, name: str, began: float, ended: float, attributes: Attributes | None = None
    ) -> None:
        """Add a span below it that has ended. Times are in seconds on the monotonic clock."""
        self._start(name, began, attributes or {}).end(self.at(max(began, ended)))

    def _linked(
        self,
        name: str,
        span: tuple[float, float],
        attributes: dict[str, str | int | float],
        ran: Ran,
        run: tuple[float, float],
    ) -> None:
        """Add a span that is linked with the batch of its run. Times are as in `stage`."""
        attributes["cohort.batch.requests"] = ran.requests
        attributes["cohort.batch.rows"] = ran.rows
        model, version = str(attributes["cohort.model"]), str(attributes["cohort.model.version"])
        during = self.at(run[0]), self.at(run[1])
        batch = self._batches.open(ran, self.context, during, _of(model, version))
        linked = self._start(name, span[0], attributes, [batch.link])
        batch.add(linked)
        linked.end(self.at(span[1]))

    def _start(
        self, name: str, began: float, attributes: Attributes, links: list[Link] | None = None
    ) -> Span:
        return self._batches.start(name, self.context, self.at(began), attributes, links or [])

    def at(self, seconds: float) -> int:
        """Return a time on the monotonic clock in nanoseconds since the epoch."""
        return self._zero + int(seconds * NANO)

    # -- the end

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the SERVER span, unless it has ended."""
        if not self._ended:
            self._span.set_attributes(attributes)

    def end(self, name: str = "", *, failed: bool = False) -> None:
        """End the SERVER span. Further calls do nothing.

        name: Its name; default: the one that it began with.
        failed: True if the server is at fault.
        """
        if self._ended:
            return
        self._ended = True
        if name:
            self._span.update_name(name)
        if failed:
            self._batches.mark_failed(self._span)
        self._span.end(self.at(monotonic()))


def _of(model: str, version: str) -> Attributes:
    return {"cohort.model": model, "cohort.model.version": version}
