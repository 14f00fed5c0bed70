"""One caller: what it may see, what it may ask for, and what it asked for."""

from __future__ import annotations

from time import monotonic

from cohort.auth.keys import ApiKey
from cohort.auth.quota import TokenBucket
from cohort.errors import Overloaded, quoted

ADMIN = "admin"
"""The name of whoever has COHORT_ADMIN_TOKEN."""


class Caller:
    """Whoever holds a key. It stays the same when the file that names it is read again.

    name: Its name, for logs and metrics; never its key.
    models: The models it may see; None: all of them.
    admin: Whether it may do what only an operator may.
    concurrency: How many of its requests may be in progress at once; None: no limit.
    priority: That of its requests; 0 is that of most.
    requests: How many requests it made that its quota let pass.
    refused: How many it did not, by what was used up: "rate" or "concurrency".
    in_flight: How many of its requests are being answered; counted where it has a limit.
    """

    __slots__ = (
        "_bucket", "_rate", "admin", "concurrency", "in_flight", "models", "name",
        "priority", "refused", "requests",
    )  # fmt: skip

    def __init__(
        self, name: str, *, models: frozenset[str] | None = None, admin: bool = False
    ) -> None:
        self.name = name
        self.models = models
        self.admin = admin
        self.requests = 0
        self.refused = {"rate": 0, "concurrency": 0}
        self.in_flight = 0
        self._rate: float | None = None
        self._bucket: TokenBucket | None = None
        self.concurrency: int | None = None
        self.priority = 0

    def follow(self, key: ApiKey) -> None:
        """Take over what the file says of it now. A quota that is the same goes on as it is."""
        self.models = None if key.models is None else frozenset(key.models)
        self.admin = key.admin
        if key.rate != self._rate:
            self._rate = key.rate
            self._bucket = None if key.rate is None else TokenBucket(key.rate)
        self.concurrency = key.concurrency
        self.priority = key.priority

    def enter(self) -> bool:
        """Count a request that begins. Returns whether `leave` has to be called when it ends.

        Raises Overloaded, and counts that, where the quota is used up.
        """
        concurrency = self.concurrency
        if concurrency is not None and self.in_flight >= concurrency:
            self.refused["concurrency"] += 1
            raise Overloaded(
                f"key {quoted(self.name)} already has {self.in_flight} requests in progress"
            )
        if self._bucket is not None and (wait := self._bucket.take(monotonic())):
            self.refused["rate"] += 1
            raise Overloaded(
                f"key {quoted(self.name)} is over its {self._rate:g} requests per second",
                retry_after=wait,
            )
        self.requests += 1
        if concurrency is None:
            return False
        self.in_flight += 1
        return True

    def stay(self) -> bool:
        """A request goes on though nobody waits for it; whether `leave` is to be called then."""
        if self.concurrency is None:
            return False
        self.in_flight += 1
        return True

    def leave(self) -> None:
        """A request that `enter` or `stay` counted has ended."""
        self.in_flight -= 1
