"""Engines whose config says what callers send and get, of a factory of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cohort.errors import LoadFailed
from cohort.processing.around import Around
from cohort.processing.engine import ProcessedEngine
from cohort.processing.processing import Asked
from cohort.processing.trying import TriedProcessing
from cohort.processing.workroom import Workroom
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
from cohort.repository import ProcessingConfig, Published
from cohort.session import CancellationToken, Signature

AskedOf = Callable[[Source], Asked | None]


class ProcessedEngines:
    """Makes engines as another factory does, which answer by `inputs` and `outputs` of a config.

    Implements `EngineFactory`.

    engines: The other factory.
    workroom: Where inputs are prepared.
    asked: Says what is asked of a version; default: what its config says.
    """

    def __init__(
        self, engines: EngineFactory, workroom: Workroom, asked: AskedOf | None = None
    ) -> None:
        self._engines = engines
        self._workroom = workroom
        self._asked = asked or asked_by_config
        self.file = engines.file

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`."""
        source = with_trial(source, self._asked(source))
        opened = self._engines.open(source, token)
        try:
            around = open_around(source, opened.signature, opened.properties)
        except BaseException:
            opened.close()
            raise
        return opened if around is None else OpenedProcessed(opened, around, self._workroom)

    def look(self) -> None:
        """See `EngineFactory`."""
        self._engines.look()

    def rest(self) -> None:
        """See `EngineFactory`."""
        self._engines.rest()

    def close(self) -> None:
        """See `EngineFactory`."""
        self._engines.close()


def asked_by_config(source: Source) -> Asked | None:
    """What the config of a version asks for its inputs and outputs; None: nothing."""
    config = source.config
    if config is None or not (config.inputs or config.outputs):
        return None
    asked = ProcessingConfig(config.inputs, config.outputs)
    return Asked(asked, f"{source.path.parent.parent.name}/config.yaml")


def with_trial(source: Source, asked: Asked | None) -> Source:
    """A source whose load makes, and tries, what is asked for its inputs; None: nothing is."""
    if asked is None:
        return source
    return replace(source, preparation=TriedProcessing(asked, source.path.parent))


def open_around(
    source: Source, signature: Signature, properties: Mapping[str, str]
) -> Around | None:
    """What is done with inputs and outputs of a version `with_trial`; None: nothing.

    signature: What its model takes and gives.
    properties: The metadata of its file.

    Raises LoadFailed for what does not fit the model, which says where that stands.
    """
    trial = source.preparation
    if not isinstance(trial, TriedProcessing):
        return None
    if trial.processing is None:  # its load has not made it
        trial.fit(signature, properties)
    return trial.processing


@dataclass(frozen=True, slots=True)
class OpenedProcessed:
    """A version that is open, with what becomes of its inputs. Implements `OpenedVersion`."""

    _opened: OpenedVersion
    _around: Around
    _workroom: Workroom

    @property
    def signature(self) -> Signature:
        """What callers must know of it."""
        around = self._around
        return Signature(around.inputs, around.outputs, around.optional)

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
            raise LoadFailed("inputs and outputs of its config are for models that take tensors")
        engine = ProcessedEngine(tensors, self._around, self._workroom)
        return engine

    def close(self) -> None:
        """See `OpenedVersion`."""
        self._opened.close()
        self._around.close()
