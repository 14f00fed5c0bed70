"""A caller: its visible models, its quota, and counts of its requests."""

from __future__ import annotations

from time import monotonic

from cohort.auth.keys import ApiKey
from cohort.auth.quota import MinuteQuota, TokenBucket
from cohort.errors import Overloaded, quoted

ADMIN = "admin"
"""The name of the caller with COHORT_ADMIN_TOKEN."""


class Caller:
    """The holder of a key. The object remains when the operator's file is read again.

    name: Its name, for logs and metrics; never its key.
    models: The models visible to it; None: all of them.
    admin: True if it may perform operators' actions.
    concurrency: The maximum of its requests in progress; None: no limit.
    priority: The priority of its requests; most have 0.
    requests: The number of its requests within its quota.
    refused: The number of refused requests, by the exhausted limit: "rate", "concurrency" or
        "tokens".
    tokens_per_minute: Its tokens of language models; None: no limit.
    in_flight: The number of its requests in progress; counted only if it has a limit.
    """

    __slots__ = (
        "_bucket",
        "_rate",
        "_tokens",
        "admin",
        "concurrency",
        "in_flight",
        "models",
        "name",
        "priority",
        "refused",
        "requests",
        "tokens_per_minute",
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
        self.tokens_per_minute: int | None = None
        self._tokens: MinuteQuota | None = None
        self.priority = 0

    def follow(self, key: ApiKey) -> None:
        """Apply the entry in the file. An unchanged quota keeps its state."""
        self.models = None if key.models is None else frozenset(key.models)
        self.admin = key.admin
        if key.rate != self._rate:
            self._rate = key.rate
            self._bucket = None if key.rate is None else TokenBucket(key.rate)
        if key.tokens_per_minute != self.tokens_per_minute:
            limit = self.tokens_per_minute = key.tokens_per_minute
            self._tokens = None if limit is None else MinuteQuota(limit)
        self.concurrency = key.concurrency
        self.priority = key.priority

    def enter(self) -> bool:
        """Count a request that begins. Returns True if `leave` must be called when it ends.

        Raises Overloaded, and counts that, if the quota is exhausted.
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

    def charge_tokens(self, tokens: int) -> None:
        """Charge tokens of a language model; a negative number gives them back, and 0 does nothing.

        Raises Overloaded, and counts that, if the quota is exhausted.
        """
        quota = self._tokens
        if quota is None:
            return
        if tokens <= 0:
            quota.correct(tokens, monotonic())
        elif wait := quota.take(tokens, monotonic()):
            self.refused["tokens"] = self.refused.get("tokens", 0) + 1
            raise Overloaded(
                f"key {quoted(self.name)} is over its {self.tokens_per_minute} tokens per minute; "
                f"this request may take {tokens}",
                retry_after=wait,
            )

    def stay(self) -> bool:
        """Count a run that continues after its client disconnected; True if `leave` must follow."""
        if self.concurrency is None:
            return False
        self.in_flight += 1
        return True

    def leave(self) -> None:
        """End a request that `enter` or `stay` counted."""
        self.in_flight -= 1
