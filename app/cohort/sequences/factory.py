"""Engines whose config says that a model has state, of a factory of any kind."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.errors import LoadFailed
from cohort.registry import (
    Engine,
    EngineEvent,
    EngineFactory,
    Measured,
    OpenedVersion,
    Site,
    Source,
    Unmeasured,
)
from cohort.repository import Published, SequencePolicy
from cohort.sequences.engine import SequencedEngine
from cohort.sequences.state import StatePlan, make_state_plan
from cohort.sequences.table import OtherVersions
from cohort.session import CancellationToken, Signature


class SequencedEngines:
    """Makes engines as another factory does, which remember the `state` of a config.

    Implements `EngineFactory`.

    engines: The other factory.
    workers: The processes that serve; default 1.
    """

    def __init__(self, engines: EngineFactory, workers: int = 1) -> None:
        self._engines = engines
        self._others = OtherVersions(workers)
        self.file = engines.file

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`."""
        opened = self._engines.open(source, token)
        config = source.config
        if config is None or not config.state:
            return opened
        try:
            plan = make_state_plan(config.state, config.sequences.initial, opened.signature)
        except LoadFailed as error:
            opened.close()
            raise LoadFailed(f"{source.path.parent.parent.name}/config.yaml: {error}") from error
        return OpenedSequenced(opened, plan, config.sequences, self._others)

    def look(self) -> None:
        """See `EngineFactory`."""
        self._engines.look()

    def rest(self) -> None:
        """See `EngineFactory`."""
        self._engines.rest()

    def close(self) -> None:
        """See `EngineFactory`."""
        self._engines.close()


@dataclass(frozen=True, slots=True)
class OpenedSequenced:
    """A version that is open, with its state. Implements `OpenedVersion`."""

    _opened: OpenedVersion
    _plan: StatePlan
    _policy: SequencePolicy
    _others: OtherVersions

    @property
    def signature(self) -> Signature:
        """What callers must know of it."""
        state = {tensor.spec.name for tensor in self._plan.tensors}
        optional = [spec for spec in self._opened.signature.optional if spec.name not in state]
        return Signature(self._plan.inputs, self._plan.outputs, optional)

    @property
    def properties(self) -> dict[str, str]:
        """The metadata of its file."""
        return dict(self._opened.properties)

    @property
    def published(self) -> Published:
        """What its manifest says, and who signed it."""
        return self._opened.published

    def start(self, site: Site) -> Engine:
        """See `OpenedVersion`."""

        def observe(event: EngineEvent) -> None:
            if isinstance(event, Measured | Unmeasured):
                event = event._replace(engine=engine)
            site.observe(event)

        inner = self._opened.start(Site(site.model, site.number, observe, site.directory))
        tensors = inner.by_tensors
        if tensors is None:
            inner.close()
            raise LoadFailed("state of its config is for models that take tensors")
        engine = SequencedEngine(
            tensors, self._plan, self._policy, site.model, site.number, self._others
        )
        return engine

    def close(self) -> None:
        """See `OpenedVersion`."""
        self._opened.close()
