"""What is loaded.

The catalog is an immutable picture of every model and version, swapped whole, so that whoever reads
it needs no lock and sees no half-made change. `plan` compares it with what is wanted; `Registry`
does what the plan says, off the loop, one version at a time. A version that is being replaced
serves until the new one is ready, and is closed when the last request that holds it is answered.
"""

from app.registry.actions import Load, Unload, plan, wanted
from app.registry.catalog import UNLOADED, Catalog, Loaded, ModelEntry, Source, State, VersionEntry
from app.registry.registry import Failed, Opened, Registry, RegistryEvent, TurnedOff, Unloaded

__all__ = [
    "UNLOADED",
    "Catalog",
    "Failed",
    "Load",
    "Loaded",
    "ModelEntry",
    "Opened",
    "Registry",
    "RegistryEvent",
    "Source",
    "State",
    "TurnedOff",
    "Unload",
    "Unloaded",
    "VersionEntry",
    "plan",
    "wanted",
]
