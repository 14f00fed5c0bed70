"""Readiness and liveness of the process, from its start to its stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from cohort.errors import MAX_LISTED, NotReady, quoted_names
from cohort.registry import Readable, Registry
from cohort.scheduling import Fault

NO_READY_VERSION = "models without a ready version"

NOT_ALL_SERVED = "some configured models cannot be served"
"""The reason for callers that may not see these models."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """A yes or no to traffic or to liveness, with the reason for a no."""

    ready: bool
    reason: str = ""

    def check(self) -> None:
        """Raise NotReady, with the reason, if it is not ready."""
        if not self.ready:
            raise NotReady(self.reason)


class Lifecycle:
    """Determines whether the process is ready and live.

    draining: True once it has begun to stop; never reset.
    opening: The last step of the start, after all others; empty: no step is left.

    registry: Holds the catalog of loaded versions.
    loading_reason: Returns the reason why the first models are not loaded yet.
    unready: Returns any other reason not to be ready; empty if there is no reason.
    faults: Returns the faults of the process itself; default: no faults.
    allow_empty: True if the process may be ready while no model serves.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        loading_reason: Callable[[], str],
        unready: Callable[[], str] = str,
        faults: Callable[[], Sequence[Fault]] = tuple,
        allow_empty: bool,
    ) -> None:
        self._registry = registry
        self._loading_reason = loading_reason
        self._unready = unready
        self.faults = faults
        self._allow_empty = allow_empty
        self.draining = False
        self.opening = ""

    @property
    def settled(self) -> bool:
        """True after the start: the first load pass, and the steps after it."""
        return self._registry.settled and not self.opening

    def readiness(self) -> Readiness:
        """Return ready if the first load pass has ended, a model serves, and no model lost all
        versions.

        Also, the process must not drain, and devices, threads and loop must have no fault. A failed
        version does not matter while another version of its model is READY.
        """
        if self.draining:
            return Readiness(False, "draining")
        if faults := self.faults():
            return Readiness(False, "; ".join(map(str, faults)))
        if not self._registry.settled:
            return Readiness(False, self._why_loading())
        if reason := self._unready():
            return Readiness(False, reason)
        if unavailable := self._registry.unavailable:
            return Readiness(False, f"{NO_READY_VERSION}: {', '.join(unavailable)}")
        if self._registry.serves_nothing and not self._allow_empty:
            return Readiness(False, _why_nothing_serves(self._registry.serving))
        return Readiness(not self.opening, self.opening)

    def readiness_for(self, registry: Readable) -> Readiness:
        """Return `readiness` with a reason that names only models in `registry`."""
        whole = self.readiness()
        if whole.ready or self.draining:
            return whole
        if faults := self.faults():
            return Readiness(False, "; ".join([fault.text for fault in faults]))
        if not registry.settled:
            return Readiness(False, "loading models")
        if unavailable := registry.unavailable:
            return Readiness(False, f"{NO_READY_VERSION}: {', '.join(unavailable)}")
        return Readiness(False, NOT_ALL_SERVED)

    def liveness(self) -> Readiness:
        """Return live unless a fault requires a restart. The reason names no model."""
        lasting = [fault.text for fault in self.faults() if fault.lasting]
        return Readiness(not lasting, "; ".join(lasting))

    def _why_loading(self) -> str:
        goes_on = self._registry.loading
        more = ", …" if len(goes_on) > MAX_LISTED else ""
        listed = f": {', '.join(goes_on[:MAX_LISTED])}{more}" if goes_on else ""
        return self._loading_reason() + listed


def _why_nothing_serves(wanted: Collection[str]) -> str:
    if not wanted:
        return "there is no model to serve"
    return f"{NO_READY_VERSION}: {quoted_names(wanted)}"
