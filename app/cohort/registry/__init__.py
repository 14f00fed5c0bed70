"""What is loaded.

The catalog is an immutable snapshot of all models and versions. Each change replaces it as a whole,
so that readers need no lock and see no partial change. `plan` compares it with what is wanted, and
`Registry` carries the plan out, loading a few versions at once, each on a thread. A version that is
being replaced serves until the new one is READY, and closes when its last request is done.
"""

from cohort.registry.actions import Load, Unload, plan, select_versions
from cohort.registry.catalog import (
    NOT_FAILED,
    RESTING,
    UNLOADED,
    Catalog,
    ModelEntry,
    State,
    VersionEntry,
    seconds_until_ready,
    why_not_ready,
)
from cohort.registry.engine import (
    BatchEngine,
    BatchingDescription,
    Cancellable,
    Doubted,
    Engine,
    EngineDescription,
    EngineEvent,
    EngineFactory,
    LeaseCount,
    Measured,
    NotedEngine,
    NotedQueue,
    NotedTicket,
    OpenedVersion,
    PipelineDescription,
    RequestNotes,
    RequestQueue,
    RunNow,
    Site,
    StepDescription,
    Unmeasured,
    VersionDirectory,
)
from cohort.registry.events import (
    RegistryEvent,
    VersionDoubted,
    VersionFailed,
    VersionLeftLoop,
    VersionMeasured,
    VersionReady,
    VersionUnbatched,
    VersionUnloaded,
)
from cohort.registry.on_demand import OnDemandRegistry
from cohort.registry.registry import LOOK_SECONDS, Registry
from cohort.registry.seen import Readable, SeenRegistry
from cohort.registry.source import Preparation, Source
from cohort.registry.succession import hold_back

__all__ = [
    "LOOK_SECONDS",
    "NOT_FAILED",
    "RESTING",
    "UNLOADED",
    "BatchEngine",
    "BatchingDescription",
    "Cancellable",
    "Catalog",
    "Doubted",
    "Engine",
    "EngineDescription",
    "EngineEvent",
    "EngineFactory",
    "LeaseCount",
    "Load",
    "Measured",
    "ModelEntry",
    "NotedEngine",
    "NotedQueue",
    "NotedTicket",
    "OnDemandRegistry",
    "OpenedVersion",
    "PipelineDescription",
    "Preparation",
    "Readable",
    "Registry",
    "RegistryEvent",
    "RequestNotes",
    "RequestQueue",
    "RunNow",
    "SeenRegistry",
    "Site",
    "Source",
    "State",
    "StepDescription",
    "Unload",
    "Unmeasured",
    "VersionDirectory",
    "VersionDoubted",
    "VersionEntry",
    "VersionFailed",
    "VersionLeftLoop",
    "VersionMeasured",
    "VersionReady",
    "VersionUnbatched",
    "VersionUnloaded",
    "hold_back",
    "plan",
    "seconds_until_ready",
    "select_versions",
    "why_not_ready",
]
