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
    Source,
    State,
    VersionEntry,
    seconds_until_ready,
    why_not_ready,
)
from cohort.registry.doubt import PACE_INTERVAL_SECONDS
from cohort.registry.engine import Cancellable, Engine, EngineDescription, LeaseCount, RequestQueue
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
from cohort.registry.examples import examples_to_try, run_examples
from cohort.registry.on_demand import OnDemandRegistry
from cohort.registry.registry import Registry
from cohort.registry.seen import Readable, SeenRegistry
from cohort.registry.succession import hold_back

__all__ = [
    "NOT_FAILED",
    "PACE_INTERVAL_SECONDS",
    "RESTING",
    "UNLOADED",
    "Cancellable",
    "Catalog",
    "Engine",
    "EngineDescription",
    "LeaseCount",
    "Load",
    "ModelEntry",
    "OnDemandRegistry",
    "Readable",
    "Registry",
    "RegistryEvent",
    "RequestQueue",
    "SeenRegistry",
    "Source",
    "State",
    "Unload",
    "VersionDoubted",
    "VersionEntry",
    "VersionFailed",
    "VersionLeftLoop",
    "VersionMeasured",
    "VersionReady",
    "VersionUnbatched",
    "VersionUnloaded",
    "examples_to_try",
    "hold_back",
    "plan",
    "run_examples",
    "seconds_until_ready",
    "select_versions",
    "why_not_ready",
]
