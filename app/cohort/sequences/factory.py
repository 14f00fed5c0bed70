"""Factory that adds sequences to the engines of another factory."""

from __future__ import annotations

from collections.abc import Callable

from cohort.errors import LoadFailed
from cohort.registry import BatchEngine, EngineFactory, OpenedVersion, Site, Source
from cohort.registry.wrapping import FactoryAround, OpenedAround
from cohort.sequences.counts import SequenceCounts
from cohort.sequences.engine import SequencedEngine
from cohort.sequences.state import make_state_plan
from cohort.sequences.table import OtherVersions
from cohort.session import CancellationToken, Signature


class SequencedEngines(FactoryAround):
    """A factory that wraps engines whose config has `state`, to keep that state.

    Implements `EngineFactory`.

    engines: The other factory.
    counts: Returns the counts of a model's version.
    workers: Number of serving processes; default 1. Models with state fail to load if it is larger,
        because the state of a sequence is kept in one process.
    """

    def __init__(
        self,
        engines: EngineFactory,
        counts: Callable[[str, int], SequenceCounts],
        workers: int = 1,
    ) -> None:
        super().__init__(engines)
        self._counts = counts
        self._workers = workers
        self._others = OtherVersions()

    def open(self, source: Source, token: CancellationToken) -> OpenedVersion:
        """See `EngineFactory`."""
        config = source.config
        if config is None or not config.state:
            return self._engines.open(source, token)
        where = f"{source.name}/config.yaml"
        if self._workers > 1:
            raise LoadFailed(
                f"{where}: state: a sequence lives in one process, and this server has "
                f"{self._workers}: set COHORT_WORKERS=1. For more, start replicas behind a "
                "balancer that routes by the header x-sequence-id"
            )
        opened = self._engines.open(source, token)
        try:
            plan = make_state_plan(config.state, config.sequences.initial, opened.signature)
        except LoadFailed as error:
            opened.close()
            raise LoadFailed(f"{where}: {error}") from error
        policy, others = config.sequences, self._others

        def wrap(engine: BatchEngine, site: Site) -> SequencedEngine:
            model, number = site.model, site.number
            counts = self._counts(model, number)
            return SequencedEngine(engine, plan, policy, model, number, others, counts)

        state = {tensor.spec.name for tensor in plan.tensors}
        optional = [spec for spec in opened.signature.optional if spec.name not in state]
        signature = Signature(plan.inputs, plan.outputs, optional)
        return OpenedAround(opened, signature, "state", wrap)
