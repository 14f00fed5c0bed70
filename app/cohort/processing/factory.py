"""Add the processing of a config to the engines of any factory."""

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
    """A factory that adds the `inputs` and `outputs` of a config to the engines of another factory.

    Implements `EngineFactory`.

    engines: The other factory.
    workroom: Threads and memory that prepare inputs.
    asked: Returns the processing of a version; default: `asked_by_config`.
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
    """Return the processing that the config of a version requests, or None."""
    config = source.config
    if config is None or not (config.inputs or config.outputs):
        return None
    asked = ProcessingConfig(config.inputs, config.outputs)
    return Asked(asked, f"{source.name}/config.yaml")


def with_trial(source: Source, asked: Asked | None) -> Source:
    """Return the source with a preparation: its load makes the processing and tries it.

    asked: The requested processing; None: only the processing that the model's metadata declares.
    """
    if asked is None:
        asked = Asked(ProcessingConfig(), f"{source.name}/config.yaml")
    return replace(source, preparation=TriedProcessing(asked, source.path.parent))


def open_around(
    source: Source, signature: Signature, properties: Mapping[str, str]
) -> Around | None:
    """Return the processing of a source made by `with_trial`, or None if nothing is processed.

    signature: The inputs and outputs of the model.
    properties: The metadata of the model's file.

    Raises LoadFailed, which names the file and key, if the config does not fit the model.
    """
    trial = source.preparation
    if not isinstance(trial, TriedProcessing):
        return None
    if trial.processing is None:  # the load did not call `fit`
        trial.fit(signature, properties)
    return trial.around


def processed(opened: OpenedVersion, around: Around, workroom: Workroom) -> OpenedVersion:
    """Return an open version whose engines prepare inputs and finish outputs in the workroom."""
    return OpenedAround(
        opened,
        Signature(around.inputs, around.outputs, around.optional),
        "inputs, outputs or transform",
        lambda engine, _: ProcessedEngine(engine, around, workroom),
        around.close,
    )
