"""Engines whose config names a transform, of a factory of any kind."""

from __future__ import annotations

from pathlib import Path

from cohort.errors import LoadFailed
from cohort.processing import Workroom, processed
from cohort.registry import EngineFactory, OpenedVersion, Source
from cohort.registry.wrapping import FactoryAround
from cohort.repository import ModelConfig
from cohort.session import CancellationToken, available_memory
from cohort.transforms.process import TransformProcess
from cohort.transforms.transform import Transform

SETTING = "COHORT_MODEL_CODE=allow"


class TransformedEngines(FactoryAround):
    """Makes engines as another factory does, with a transform around those whose config names one.

    Implements `EngineFactory`.

    engines: The other factory.
    allowed: Whether code in a model's folder may run.
    maximum: Bytes that inputs may take that wait for a transform.
    """

    def __init__(self, engines: EngineFactory, *, allowed: bool, maximum: int) -> None:
        super().__init__(engines)
        self._allowed = allowed
        self._maximum = maximum

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`."""
        config = source.config
        if config is None or config.transform is None:
            return self._engines.open(source, token)
        where = f"{source.path.parent.parent.name}/config.yaml"
        if not self._allowed:
            raise LoadFailed(
                f"{where}: transform: code of models runs only where the server is started with "
                f"{SETTING}"
            )
        opened = self._engines.open(source, token)
        try:
            token.enter("loading its transform")
            return self._around(opened, source.path.parent, config)
        except LoadFailed as error:
            opened.close()
            raise LoadFailed(f"{where}: {error}") from error
        except BaseException:
            opened.close()
            raise

    def _around(self, opened: OpenedVersion, folder: Path, config: ModelConfig) -> OpenedVersion:
        process = TransformProcess(
            config.transform or "",
            [str(folder.absolute()), str(folder.parent.absolute())],
            memory=available_memory() // 4,
            most_bytes=config.max_output_mb * 2**20,
            model=folder.parent.name,
            seconds=config.timeout_ms / 1000,
        )
        workroom = Workroom(1, self._maximum)
        try:
            transform = Transform(process, opened.signature, workroom)
        except BaseException:
            workroom.close()
            process.close()
            raise
        return processed(opened, transform, workroom)
