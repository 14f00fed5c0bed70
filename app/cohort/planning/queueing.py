"""The queue M/G/c: random arrivals, any run times, c runs at a time, one line for all.

The share of requests that wait is Erlang's C formula. Their wait is exponential, with a mean that
is (1 + variation²) / 2 times that of exponential run times. Sources: Lee and Longton, 1959; Tijms,
"A First Course in Stochastic Models", 9.6. The first is exact for exponential run times, the second
for one run at a time. `simulate` shows the error for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import NormalDist

POINTS, BISECTIONS = 1000, 40
"""The run times that stand for all, and the halvings of the answer's interval."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that wait in one line for c servers.

    rate: Requests per second.
    servers: Runs at a time, over all replicas; at least 1.
    seconds: The mean time of a run; above 0.
    variation: The standard deviation of a run's time over its mean; default 0: always the same.
    """

    rate: float
    servers: int
    seconds: float
    variation: float = 0.0

    @property
    def load(self) -> float:
        """The share of time that a server is busy; 1 or more: the line grows without end."""
        return self.rate * self.seconds / self.servers

    @property
    def waiting_share(self) -> float:
        """The share of requests that wait (Erlang C); 1 if the line grows without end."""
        if self.load >= 1:
            return 1.0
        offered = self.rate * self.seconds
        blocked = 1.0  # Erlang B, by its recursion: stable for any number of servers
        for servers in range(1, self.servers + 1):
            blocked = offered * blocked / (servers + offered * blocked)
        return blocked / (1 - self.load * (1 - blocked))

    @property
    def _mean_wait(self) -> float:
        """The mean wait in seconds of the requests that wait."""
        return (1 + self.variation**2) / 2 * self.seconds / (self.servers * (1 - self.load))

    def wait(self, share: float) -> float:
        """Return the wait in seconds that this share of requests does not exceed, such as 0.99."""
        if self.load >= 1:
            return inf
        waiting = self.waiting_share
        if waiting <= 1 - share:
            return 0.0
        return self._mean_wait * log(waiting / (1 - share))

    def time(self, share: float) -> float:
        """Return the wait and the run in seconds that this share of requests does not exceed.

        A run that varies is taken as log-normal, and independent of its wait.
        """
        if self.load >= 1:
            return inf
        if not self.variation:
            return self.wait(share) + self.seconds
        waiting = self.waiting_share
        runs = [self.run_time((point + 0.5) / POINTS) for point in range(POINTS)]
        most = 1 - (1 - share) / 2
        early, late = 0.0, self.wait(most) + self.run_time(most)
        for _ in range(BISECTIONS):
            middle = (early + late) / 2
            if self._late_share(middle, runs, waiting) > 1 - share:
                early = middle
            else:
                late = middle
        return late

    def _late_share(self, seconds: float, runs: Sequence[float], waiting: float) -> float:
        """Return the share of requests that take longer, if their runs are equally likely."""
        mean = self._mean_wait
        late = sum(1.0 if run > seconds else waiting * exp((run - seconds) / mean) for run in runs)
        return late / len(runs)

    def run_time(self, share: float) -> float:
        """Return the time in seconds that this share of the runs does not exceed."""
        if not self.variation:
            return self.seconds
        spread = log(1 + self.variation**2)
        return self.seconds * exp(NormalDist().inv_cdf(share) * spread**0.5 - spread / 2)
