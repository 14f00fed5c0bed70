"""Factory that adds transforms to the engines of another factory."""

from __future__ import annotations

from cohort.errors import LoadFailed
from cohort.processing import Workroom, processed
from cohort.registry import EngineFactory, OpenedVersion, Source
from cohort.registry.wrapping import FactoryAround
from cohort.session import CancellationToken, Signature, available_memory
from cohort.transforms.process import TransformProcess
from cohort.transforms.transform import Transform

NOT_ALLOWED = "code of models runs only where the server is started with COHORT_MODEL_CODE=allow"


class TransformedEngines(FactoryAround):
    """A factory that wraps engines in the transform that their config names.

    Implements `EngineFactory`.

    engines: The other factory.
    allowed: True if code in a model's folder may run.
    maximum: Maximum bytes of inputs that wait for a transform.
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
        if not self._allowed:
            raise LoadFailed(f"{_place(source)}: transform: {NOT_ALLOWED}")
        opened = self._engines.open(source, token)
        try:
            token.enter("loading its transform")
            transform = open_transform(source, opened.signature, self._maximum)
        except BaseException:
            opened.close()
            raise
        return processed(opened, transform, transform.workroom)


def open_transform(source: Source, signature: Signature, maximum: int) -> Transform:
    """Start the transform that a version's config names, in a separate process.

    signature: The model's inputs and outputs.
    maximum: Maximum bytes of inputs that wait for it.

    The caller must close it. Raises LoadFailed with the path of the config.
    """
    config, folder = source.config, source.path.parent
    assert config is not None  # noqa: S101 - it names a transform
    try:
        process = TransformProcess(
            config.transform or "",
            [str(folder.absolute()), str(folder.parent.absolute())],
            memory=available_memory() // 4,
            most_bytes=config.max_output_mb * 2**20,
            model=source.name,
            seconds=config.timeout(),
        )
        workroom = Workroom(1, maximum)
        try:
            return Transform(process, signature, workroom)
        except BaseException:
            workroom.close()
            process.close()
            raise
    except LoadFailed as error:
        raise LoadFailed(f"{_place(source)}: {error}") from error


def _place(source: Source) -> str:
    return f"{source.name}/config.yaml"
