"""What is loaded.

The catalog is an immutable picture of every model and version, swapped whole, so that whoever reads
it needs no lock and sees no half-made change. `plan` compares it with what is wanted; `Registry`
does what the plan says, off the loop, one version at a time. A version that is being replaced
serves until the new one is ready, and is closed when the last request that holds it is answered.
"""

from app.registry.actions import Load, Unload, plan, wanted
from app.registry.catalog import UNLOADED, Catalog, ModelEntry, Source, State, VersionEntry
from app.registry.engine import Cancellable, Engine, EngineDescription, LeaseCount, RequestQueue
from app.registry.registry import Failed, Opened, Registry, RegistryEvent, TurnedOff, Unloaded

__all__ = [
    "UNLOADED",
    "Cancellable",
    "Catalog",
    "Engine",
    "EngineDescription",
    "Failed",
    "LeaseCount",
    "Load",
    "ModelEntry",
    "Opened",
    "Registry",
    "RegistryEvent",
    "RequestQueue",
    "Source",
    "State",
    "TurnedOff",
    "Unload",
    "Unloaded",
    "VersionEntry",
    "plan",
    "wanted",
]
