"""Engines whose config says that a model has state, of a factory of any kind."""

from __future__ import annotations

from cohort.errors import LoadFailed
from cohort.registry import BatchEngine, EngineFactory, OpenedVersion, Site, Source
from cohort.registry.wrapping import FactoryAround, OpenedAround
from cohort.sequences.engine import SequencedEngine
from cohort.sequences.state import make_state_plan
from cohort.sequences.table import OtherVersions
from cohort.session import CancellationToken, Signature


class SequencedEngines(FactoryAround):
    """Makes engines as another factory does, which remember the `state` of a config.

    Implements `EngineFactory`.

    engines: The other factory.
    workers: The processes that serve; default 1.
    """

    def __init__(self, engines: EngineFactory, workers: int = 1) -> None:
        super().__init__(engines)
        self._others = OtherVersions(workers)

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
        policy, others = config.sequences, self._others

        def wrap(engine: BatchEngine, site: Site) -> SequencedEngine:
            return SequencedEngine(engine, plan, policy, site.model, site.number, others)

        state = {tensor.spec.name for tensor in plan.tensors}
        optional = [spec for spec in opened.signature.optional if spec.name not in state]
        signature = Signature(plan.inputs, plan.outputs, optional)
        return OpenedAround(opened, signature, "state", wrap)
