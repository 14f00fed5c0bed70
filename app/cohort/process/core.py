"""The core of a process, which runs models: no HTTP, no watched files, no other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from sys import maxsize

import structlog

from cohort.batching import Watchdog
from cohort.connections.memory import MemoryBudget
from cohort.generative.factory import GenerativeEngines, PlainDecoders
from cohort.inspection import Inspected, InspectionLimits, Inspector
from cohort.metrics import (
    CacheMetrics,
    GenerationMetrics,
    Metrics,
    RolloutMetrics,
    SequenceMetrics,
    StepMetrics,
)
from cohort.onnx_engine import OnnxEngines, VersionOpener
from cohort.pipelines import PipelineEngines, asked_by_pipeline
from cohort.process.events import Listeners
from cohort.process.registry_log import RegistryLog
from cohort.process.resources import memory_for_requests, part_of
from cohort.process.startup import StartUp
from cohort.processing import AskedOf, ProcessedEngines, Workroom, asked_by_config
from cohort.registry import EngineFactory, OnDemandRegistry, Registry, RegistryEvent, VersionReady
from cohort.repository import Trust
from cohort.response_cache import CachedEngines
from cohort.rollouts import RolloutEvent, Rollouts
from cohort.rollouts.watcher import log_event
from cohort.scheduling import Scheduler
from cohort.sequences import SequencedEngines
from cohort.serving import ConcurrencyLimit, DataPlane
from cohort.session import OrtRunControl, available_memory, cores, model_rules
from cohort.settings import Settings
from cohort.transforms.factory import TransformedEngines

log = structlog.get_logger("cohort")


class Core:
    """The registry and its scheduler, the rollouts, and the plane that answers requests.

    rules: The limits of any model.
    trust: A trusted key must have signed a version; None: signatures are not required.
    scheduler: Runs the batches of all models.
    watchdog: Stops runs on the event loop that take too long.
    inspector: Inspects models before they are opened.
    memory: The memory that requests may use.
    workroom: Prepares inputs as configs require.
    generation: The counts of language models.
    metrics: The metrics; other parts register theirs here.
    start_up: Reports the first models.
    registry: The models.
    registry_events: Distributes the events of versions.
    rollouts: The rollouts of all models.
    rollout_events: Distributes the events of rollouts.
    limit: The limit of requests in progress.
    data_plane: Answers requests.

    settings: The settings of the process.
    traced: True if requests may have spans; default: False.
    on_demand: True to load each model when it is first asked for; default: False.
    """

    def __init__(
        self, settings: Settings, *, traced: bool = False, on_demand: bool = False
    ) -> None:
        self.rules = model_rules(
            settings.max_model_mb, settings.max_nodes, settings.custom_ops, settings.providers
        )
        self.trust = None if settings.trusted_keys is None else Trust()
        self.scheduler = Scheduler({"cpu": cores()})
        self.watchdog = Watchdog(OrtRunControl)
        self.memory = MemoryBudget(
            memory_for_requests(available_memory(), settings.workers)
            if settings.memory_mb is None
            else settings.memory_mb * 2**20 // settings.workers
        )
        self.workroom = Workroom(cores(), self.memory.maximum)
        self.metrics = Metrics()
        self.caches = CacheMetrics()
        self.sequences = SequenceMetrics()
        self.generation = GenerationMetrics(self.metrics)
        self.metrics.register(self.caches, self.sequences, self.generation)
        self.start_up = StartUp(settings, self.rules.default_chain)
        self.inspector = Inspector(
            InspectionLimits(settings.inspection_seconds, settings.inspection_mb),
            settings.cache,
            self._log_inspected,
        )
        self.registry_events = Listeners[RegistryEvent]()
        self._steps = StepMetrics(self.metrics)
        self.registry = self._make_registry(settings, on_demand=on_demand)
        self.registry.may_be_empty = settings.multi_model
        self.rollout_events = Listeners[RolloutEvent]()
        self.rollouts = Rollouts(lambda: self.registry.catalog, self.rollout_events)
        self.limit = ConcurrencyLimit(part_of(settings.max_concurrency, settings.workers))
        self.data_plane = DataPlane(
            self.registry,
            self.metrics,
            self.rollouts,
            default_model=settings.default_model or settings.model_name or None,
            limit=self.limit,
            memory=self.memory,
            gather=self.scheduler.gather,
            traced=traced,
        )
        rollout_metrics = RolloutMetrics()
        self.metrics.register(rollout_metrics, self._steps)
        self.registry_events.add(self.metrics.observe)
        self.registry_events.add(RegistryLog(self.registry, self.start_up).observe)
        self.registry_events.add(self._begin_waiting)
        self.rollout_events.add(rollout_metrics.observe)
        self.rollout_events.add(log_event)

    def _make_registry(self, settings: Settings, *, on_demand: bool) -> Registry:
        make: Callable[..., Registry] = Registry
        most = settings.max_loaded_models
        if most is not None or on_demand:
            most = maxsize if most is None else most
            make = partial(OnDemandRegistry, most, 0 if on_demand else most)
        opener = VersionOpener(settings.cache, self.rules, self.inspector, self.trust)
        generative = GenerativeEngines(
            wake=self.scheduler.wake, opener=opener, count=self.generation.observer
        )
        onnx = OnnxEngines(
            wake=self.scheduler.wake,
            started=lambda: self.scheduler.started,
            count=self.metrics.batches_of,
            opener=opener,
            inline_run=self.watchdog.inline,
        )
        pipelines = PipelineEngines(
            lambda: self.registry, count=self._steps.steps_of, trust=self.trust
        )
        engines = [
            generative,
            PlainDecoders(self._processed(onnx, settings, asked_by_config), generative),
            self._processed(pipelines, settings, asked_by_pipeline),
        ]
        return make(engines, observe=self.registry_events, trust=self.trust)

    def _processed(
        self, engines: EngineFactory, settings: Settings, asked: AskedOf
    ) -> EngineFactory:
        """Wrap engines with the processing that their versions' configs require."""
        transformed = TransformedEngines(
            ProcessedEngines(engines, self.workroom, asked),
            allowed=settings.model_code == "allow",
            maximum=self.memory.maximum,
        )
        sequenced = SequencedEngines(transformed, self.sequences.counts, settings.workers)
        return CachedEngines(
            sequenced,
            self.caches.counts,
            self.workroom.submit,
            changes_alone=asked is not asked_by_pipeline,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run models of the registry until the end of the context, then stop all parts."""
        with ExitStack() as stack:
            self.watchdog.start()
            stack.callback(self.watchdog.close)
            stack.callback(self.scheduler.close)  # its threads finish batches in flight
            stack.callback(self.registry.close)
            stack.callback(self.inspector.close)
            stack.callback(self.workroom.close)
            stack.callback(self.rollouts.close)  # shadow requests hold versions
            yield

    def _begin_waiting(self, event: RegistryEvent) -> None:
        if isinstance(event, VersionReady):
            self.rollouts.begin_waiting()

    def _log_inspected(self, inspected: Inspected) -> None:
        if self.start_up.pending:  # the table will show harmful models
            return
        log.info(
            "model inspected",
            model=inspected.model,
            version=inspected.version,
            sha256=inspected.sha256,
            seconds=round(inspected.seconds, 3),
            harm=inspected.harm,
        )
