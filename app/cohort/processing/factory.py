"""Engines whose config says what callers send and get, of a factory of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cohort.processing.around import Around
from cohort.processing.engine import ProcessedEngine
from cohort.processing.processing import Asked
from cohort.processing.trying import TriedProcessing
from cohort.processing.workroom import Workroom
from cohort.registry import EngineFactory, OpenedVersion, Source
from cohort.registry.wrapping import FactoryAround, OpenedAround
from cohort.repository import ProcessingConfig
from cohort.session import CancellationToken, Signature

AskedOf = Callable[[Source], Asked | None]


class ProcessedEngines(FactoryAround):
    """Makes engines as another factory does, which answer by `inputs` and `outputs` of a config.

    Implements `EngineFactory`.

    engines: The other factory.
    workroom: Where inputs are prepared.
    asked: Says what is asked of a version; default: what its config says.
    """

    def __init__(
        self, engines: EngineFactory, workroom: Workroom, asked: AskedOf | None = None
    ) -> None:
        super().__init__(engines)
        self._workroom = workroom
        self._asked = asked or asked_by_config

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`."""
        source = with_trial(source, self._asked(source))
        opened = self._engines.open(source, token)
        try:
            around = open_around(source, opened.signature, opened.properties)
        except BaseException:
            opened.close()
            raise
        return opened if around is None else processed(opened, around, self._workroom)


def asked_by_config(source: Source) -> Asked | None:
    """What the config of a version asks for its inputs and outputs; None: nothing."""
    config = source.config
    if config is None or not (config.inputs or config.outputs):
        return None
    asked = ProcessingConfig(config.inputs, config.outputs)
    return Asked(asked, f"{source.path.parent.parent.name}/config.yaml")


def with_trial(source: Source, asked: Asked | None) -> Source:
    """A source whose load makes, and tries, what is asked for its inputs.

    asked: None: nothing but what the metadata of the model's file may say.
    """
    if asked is None:
        asked = Asked(ProcessingConfig(), f"{source.path.parent.parent.name}/config.yaml")
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
    return trial.around


def processed(opened: OpenedVersion, around: Around, workroom: Workroom) -> OpenedVersion:
    """A version that is open, with work around its model, in a workroom."""
    return OpenedAround(
        opened,
        Signature(around.inputs, around.outputs, around.optional),
        "inputs, outputs or transform",
        lambda engine, _: ProcessedEngine(engine, around, workroom),
        around.close,
    )
