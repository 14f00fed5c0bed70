"""Whether the process is ready and live, from its start to its stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from cohort.errors import MAX_LISTED, NotReady, quoted_names
from cohort.registry import Readable, Registry
from cohort.scheduling import Trouble

NO_READY_VERSION = "models without a ready version"

NOT_ALL_SERVED = "not everything that is configured can be served"
"""The reason for who may not see the models that it is about."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process should receive traffic, and the reason if it should not."""

    ready: bool
    reason: str = ""

    def check(self) -> None:
        """Raise NotReady, with the reason, if it should not."""
        if not self.ready:
            raise NotReady(self.reason)


class Lifecycle:
    """Knows how far the process is, and whether it is well.

    draining: Whether it has begun to stop; never reset.
    opening: What is still to be opened once all else is ready; empty: nothing.

    registry: Holds the catalog of loaded versions.
    loading_reason: Returns the reason why the first models are not loaded yet.
    unready: Returns what else keeps the process from being ready; empty where nothing does.
    troubles: Returns what is wrong with the process itself; default: nothing.
    allow_empty: Whether the process may be ready while no model serves.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        loading_reason: Callable[[], str],
        unready: Callable[[], str] = str,
        troubles: Callable[[], Sequence[Trouble]] = tuple,
        allow_empty: bool,
    ) -> None:
        self._registry = registry
        self._loading_reason = loading_reason
        self._unready = unready
        self.troubles = troubles
        self._allow_empty = allow_empty
        self.draining = False
        self.opening = ""

    @property
    def settled(self) -> bool:
        """Whether the start is over: the first load pass, and what is opened after it."""
        return self._registry.settled and not self.opening

    def readiness(self) -> Readiness:
        """Ready means: the first load pass is over, a model serves, and none became unavailable.

        And the process does not drain, and nothing is wrong with a device, a thread or the loop.

        A version that failed does not matter while another version of its model is READY.
        """
        if self.draining:
            return Readiness(False, "draining")
        if troubles := self.troubles():
            return Readiness(False, "; ".join(map(str, troubles)))
        if not self._registry.settled:
            return Readiness(False, self._why_loading())
        if reason := self._unready():
            return Readiness(False, reason)
        if unavailable := self._registry.unavailable:
            return Readiness(False, f"{NO_READY_VERSION}: {', '.join(unavailable)}")
        if self._registry.serves_nothing and not self._allow_empty:
            return Readiness(False, _why_nothing_serves(self._registry.serving))
        return Readiness(not self.opening, self.opening)

    def readiness_for(self, seen: Readable) -> Readiness:
        """As `readiness`; the reason names only models in `seen`."""
        whole = self.readiness()
        if whole.ready or self.draining:
            return whole
        if troubles := self.troubles():
            return Readiness(False, "; ".join([trouble.text for trouble in troubles]))
        if not seen.settled:
            return Readiness(False, "loading models")
        if unavailable := seen.unavailable:
            return Readiness(False, f"{NO_READY_VERSION}: {', '.join(unavailable)}")
        return Readiness(False, NOT_ALL_SERVED)

    def liveness(self) -> Readiness:
        """Live means: nothing is wrong that only a restart mends. The reason names no model."""
        lasting = [trouble.text for trouble in self.troubles() if trouble.lasting]
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
