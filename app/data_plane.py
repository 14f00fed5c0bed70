"""What a caller can ask for: a lease on a model, and an answer from it.

Every face goes one way: `pick` a lease, decode with its `inputs`, `submit`, encode in `reply`,
`close`. A lease counts its request exactly once, when it is closed, with the code the caller saw.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import NoReturn, Self

from app.batching import Outputs, Ticket
from app.errors import (
    Cancelled,
    CohortError,
    InvalidInput,
    NotFound,
    NotReady,
    Overloaded,
    did_you_mean,
    quoted,
)
from app.metrics import Metrics, VersionMetrics
from app.registry import Catalog, Loaded, Registry
from app.rollout import Sticky
from app.tensors import Arrays, TensorSpec, check_inputs
from app.traffic import LiveRollout, Traffic

__all__ = ["DataPlane", "KeyOf", "Lease", "Outputs", "Reply", "Sticky"]

Reply = Callable[[Outputs | None, CohortError | None], None]

KeyOf = Callable[[Sticky], str | None]
"""Gives what a request has in the header or parameter that keeps its caller on a variant."""


class Served:
    """One version as its requests see it, put together once. `sent` are the outputs sent unasked.

    `outputs` and `inputs` are in the model's order.
    """

    __slots__ = ("counts", "inputs", "loaded", "model", "outputs", "sent", "version")

    def __init__(self, model: str, version: str, loaded: Loaded, counts: VersionMetrics) -> None:
        self.model = model
        self.version = version
        self.loaded = loaded
        self.counts = counts
        self.inputs: Sequence[TensorSpec] = loaded.session.inputs
        self.outputs: Sequence[TensorSpec] = loaded.session.outputs
        self.sent = [place for place, spec in enumerate(self.outputs) if spec.carried]


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
            reply = self._live.listen(
                self.variant,
                int(self.version),
                self.outputs,
                arrays,
                reply,
                started=self._started,
                hurried=limit < loaded.timeout,
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


class DataPlane:
    """Callers' way in."""

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        traffic: Traffic | None = None,
        *,
        default_model: str | None = None,
        max_concurrency: int = 4096,
    ) -> None:
        self._registry = registry
        self._metrics = metrics
        self._traffic = traffic
        self._rollouts: Mapping[str, LiveRollout] = {} if traffic is None else traffic.live
        self._default_model = default_model
        self._max_concurrency = max_concurrency
        self._served: dict[tuple[str, str | None], Served] = {}
        self._served_from: Catalog | None = None
        self._usual_model = default_model  # who is asked where no model is named
        self.open_leases = 0
        self.closed = False  # draining: no new requests

    def pick(
        self,
        model: str | None,
        version: str | None = None,
        *,
        key_of: KeyOf | None = None,
        label: str | None = None,
    ) -> Lease:
        """Choose who answers: the model's rollout does, or else it is the highest that is READY.

        `version` or `label`, the name of a variant, pins one. `key_of` is asked only where the
        rollout keeps callers on their variants. `model` may be None where the server has one model
        or a default. Raises InvalidInput, ModelNotFound, NotFound, VersionNotFound, NotReady or
        Overloaded, and counts what it raises if the model is known.
        """
        if self._served_from is not self._registry.catalog:
            self._forget()
        name = model if model is not None else self._usual_model or self._no_model()
        variant, live = "", None
        try:
            if self.closed:
                raise NotReady("the server is shutting down")
            if self.open_leases >= self._max_concurrency:
                raise Overloaded(f"the server has {self.open_leases} requests in hand already")
            if label is not None:
                variant, version = label, self._labelled(name, label)
            elif version is None and (live := self._rollouts.get(name)) is not None:
                variant, version = self._choose(name, live, key_of)
            served = self._served.get((name, version)) or self._serve(name, version)
        except CohortError as error:
            self.refused(name, error)
            raise
        served.loaded.leases += 1
        self.open_leases += 1
        return Lease(self, served, variant, live)

    def _forget(self) -> None:
        """Begin anew with another catalog."""
        catalog = self._served_from = self._registry.catalog
        self._served.clear()
        self._usual_model = self._default_model
        if self._usual_model is None and len(catalog) == 1:
            (self._usual_model,) = catalog

    def _serve(self, name: str, version: str | None) -> Served:
        """The version that answers; remembered, until the catalog is another."""
        entry = self._registry.find(name, version)
        if entry.loaded is None:
            raise NotReady(f"version {entry.number} of model {quoted(name)} is not loaded")
        number = str(entry.number)
        served = Served(name, number, entry.loaded, self._metrics.version(name, number))
        self._served[name, version] = served
        return served

    def _choose(self, name: str, live: LiveRollout, key_of: KeyOf | None) -> tuple[str, str]:
        sticky = live.rollout.sticky
        key = None if sticky is None or key_of is None else key_of(sticky) or None
        ready = self._registry.model(name).ready
        chosen = live.choose(key, ready)
        if chosen.version not in ready:
            raise NotReady(
                f"version {chosen.version} of model {quoted(name)}, its rollout's baseline, is not "
                "ready"
            )
        return chosen.name, str(chosen.version)

    def _labelled(self, name: str, label: str) -> str:
        self._registry.model(name)
        if self._traffic is None:
            raise NotFound(f"model {quoted(name)} has no rollout, and so no labels")
        return str(self._traffic.version_of(name, label))

    def refused(self, model: str | None, error: CohortError) -> None:
        """Count a request that never got a lease; unknown models are not counted by name."""
        name = model if model is not None else self._default_model
        if name is None or name not in self._registry.catalog:
            return
        counts = self._metrics.version(name, "")
        counts.request("", error.code, 0.0)
        if isinstance(error, Overloaded | NotReady):
            counts.refuse(error.code)

    def _no_model(self) -> NoReturn:
        names = self._registry.catalog
        if not names:
            raise NotReady("no model is loaded yet")
        raise InvalidInput(f"name a model: the server has {', '.join(map(quoted, names))}")
