"""Whether the process is well: its devices, the threads of its runs, its event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from cohort.scheduling import Trouble

STUCK_SECONDS = 10.0
"""How long a run may go on that nobody waits for. It was told to stop, which it does at a node."""

LAG_SECONDS = 0.5
"""How late the event loop may be, look after look."""

LAG_LOOKS = 8
"""So many looks in a row have to find it late: a single pause is none of the loop's doing."""


class ProcessHealth:
    """Collects what is wrong with the process. Used on the event loop, but for `latest`.

    latest: What was wrong at the last look.

    devices: Returns what is wrong with devices and threads, from the seconds that a run may go on
        once nobody waits for it: `Scheduler.troubles`.
    """

    def __init__(
        self,
        devices: Callable[[float], Iterable[Trouble]],
    ) -> None:
        self._devices = devices
        self._lags: deque[float] = deque(maxlen=LAG_LOOKS)
        self.latest: list[Trouble] = []

    def observe_lag(self, seconds: float) -> None:
        """Note how late the event loop was just now."""
        self._lags.append(seconds)

    def troubles(self) -> list[Trouble]:
        """What is wrong now; empty where the process is well."""
        found = list(self._devices(STUCK_SECONDS))
        if len(self._lags) == LAG_LOOKS and (least := min(self._lags)) > LAG_SECONDS:
            found.append(Trouble("loop_lagging", f"the event loop is {least:.1f} s late or more"))
        self.latest = found
        return found
