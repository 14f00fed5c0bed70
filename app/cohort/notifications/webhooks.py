"""Notifications to an operator's receivers over HTTP: signed, retried, bounded.

Signatures follow https://www.standardwebhooks.com; receivers can verify them using its libraries.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import uniform
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog
from pydantic import SecretStr

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger("cohort")

TRY_AGAIN = frozenset({408, 425, 429})
"""Statuses below 500 that are retried, because a later response may differ."""


def split_addresses(text: str) -> tuple[str, ...]:
    """Split addresses at commas. Raises ValueError, whose message does not contain any address."""
    addresses = tuple(one.strip() for one in text.split(","))
    for place, address in enumerate(addresses, 1):
        try:
            parts = urlsplit(address)
            valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or not all("!" <= letter <= "~" for letter in address):
            raise ValueError(
                "must be addresses that begin with http:// or https://, separated by commas; "
                f"number {place} is not"
            )
    return addresses


def check_addresses(text: SecretStr | None) -> SecretStr | None:
    """Return valid addresses, or None if there are none. Raises ValueError for invalid ones."""
    return SecretStr(",".join(split_addresses(text.get_secret_value()))) if text else None


@dataclass(frozen=True, slots=True)
class Retrying:
    """Retry limits for one receiver, in seconds.

    timeout: Limit of one request, from connecting to the head of the response; default 10.
    first_pause: Pause after the first failure; it doubles after each further one; default 1.
    longest_pause: Longest pause between two requests; default 60.
    give_up_after: Time from a notification's first request to the last retry; default an hour.
    most_waiting: Maximum notifications queued for one receiver; beyond it, the oldest is dropped;
        default 256.
    """

    timeout: float = 10.0
    first_pause: float = 1.0
    longest_pause: float = 60.0
    give_up_after: float = 3600.0
    most_waiting: int = 256


PATIENT = Retrying()


@dataclass(frozen=True, slots=True)
class Notification:
    """An event to report to receivers.

    id: The event's id, equal in all replicas, so that receivers can drop duplicates.
    kind: The event's type, such as "rollout.rolled_back".
    data: The event's details, as JSON values.
    """

    id: str
    kind: str
    data: Mapping[str, Any]

    def body(self) -> bytes:
        """Return the notification as JSON, with the current time."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        return json.dumps({"type": self.kind, "timestamp": at, "data": self.data}).encode()


def sign(key: bytes, identifier: str, timestamp: str, body: bytes) -> str:
    """Return the value of `webhook-signature`: HMAC-SHA256 of id, timestamp and body."""
    signed = f"{identifier}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


@dataclass(slots=True)
class _Receiver:
    url: str
    name: str  # for logs and metrics: paths and queries may hold secrets
    waiting: deque[tuple[Notification, bytes]] = field(default_factory=deque)
    come: asyncio.Event = field(default_factory=asyncio.Event)


class Webhooks:
    """The sender of notifications, which go to every receiver in order.

    Receivers are independent of each other, and `send` does not wait for them.

    outcomes: Number of notifications by receiver and outcome: "delivered", "failed" or "dropped".

    urls: The receivers' addresses.
    key: Returns the signing key; called on the event loop before each request.
    retrying: The retry limits of each receiver.
    """

    def __init__(
        self, urls: Sequence[str], key: Callable[[], bytes], *, retrying: Retrying = PATIENT
    ) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._key = key
        self._retrying = retrying
        self._receivers = [_Receiver(url, urlsplit(url).netloc.rpartition("@")[2]) for url in urls]
        for receiver in self._receivers:
            for outcome in ("delivered", "failed", "dropped"):
                self.outcomes[receiver.name, outcome] += 0

    @property
    def waiting(self) -> Mapping[str, int]:
        """Return the number of notifications queued or being sent, by receiver."""
        counts: Counter[str] = Counter()
        for receiver in self._receivers:
            counts[receiver.name] += len(receiver.waiting)
        return counts

    def send(self, notification: Notification) -> None:
        """Queue a notification for every receiver, without waiting."""
        body = notification.body()
        for receiver in self._receivers:
            if len(receiver.waiting) >= self._retrying.most_waiting:
                dropped, _ = receiver.waiting.popleft()
                self._count(receiver, dropped, "dropped", "too many wait")
            receiver.waiting.append((notification, body))
            receiver.come.set()

    async def run(self) -> None:
        """Send queued notifications until cancelled; then drop and log the rest."""
        client = await asyncio.to_thread(_make_client)  # reads the CA certificates
        try:
            async with client, asyncio.TaskGroup() as tasks:
                for receiver in self._receivers:
                    tasks.create_task(self._serve(client, receiver))
        finally:
            for receiver in self._receivers:
                if receiver.waiting:
                    log.warning(
                        "webhooks not sent", receiver=receiver.name, count=len(receiver.waiting)
                    )

    async def _serve(self, client: httpx.AsyncClient, receiver: _Receiver) -> None:
        while True:
            receiver.come.clear()
            while receiver.waiting:
                first = receiver.waiting[0]
                failure = await self._deliver(client, receiver, *first)
                if receiver.waiting and receiver.waiting[0] is first:  # not dropped during delivery
                    receiver.waiting.popleft()
                    outcome = "failed" if failure else "delivered"
                    self._count(receiver, first[0], outcome, failure)
            await receiver.come.wait()

    async def _deliver(
        self,
        client: httpx.AsyncClient,
        receiver: _Receiver,
        notification: Notification,
        body: bytes,
    ) -> str:
        """Retry until success, a lasting refusal or the time limit; return the failure, or ""."""
        retrying = self._retrying
        pause, until = retrying.first_pause, time.monotonic() + retrying.give_up_after
        while True:
            failure, lasting = await self._post(client, receiver, notification.id, body)
            if not failure or lasting or time.monotonic() + pause > until:
                return failure
            log.warning(
                "webhook failed, trying again",
                receiver=receiver.name,
                id=notification.id,
                reason=failure,
            )
            await asyncio.sleep(uniform(pause / 2, pause))  # noqa: S311 - spreads, hides nothing
            pause = min(2 * pause, retrying.longest_pause)

    async def _post(
        self, client: httpx.AsyncClient, receiver: _Receiver, identifier: str, body: bytes
    ) -> tuple[str, bool]:
        """Send one request; return the failure, or "", and whether a retry cannot help.

        An exception is reported by its class only: its text may contain the address.
        """
        import httpx  # noqa: PLC0415 - only needed if there are receivers

        timestamp = str(int(time.time()))
        try:
            async with asyncio.timeout(self._retrying.timeout):
                headers = {
                    "content-type": "application/json",
                    "webhook-id": identifier,
                    "webhook-timestamp": timestamp,
                    "webhook-signature": sign(self._key(), identifier, timestamp, body),
                }
                async with client.stream(
                    "POST", receiver.url, content=body, headers=headers
                ) as response:
                    status = response.status_code  # the body is not read
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return type(error).__name__, False
        if 200 <= status < 300:
            return "", False
        return f"status {status}", status < 500 and status not in TRY_AGAIN

    def _count(
        self, receiver: _Receiver, notification: Notification, outcome: str, reason: str
    ) -> None:
        self.outcomes[receiver.name, outcome] += 1
        if outcome != "delivered":
            log.error(
                "webhook not delivered",
                outcome=outcome,
                receiver=receiver.name,
                id=notification.id,
                kind=notification.kind,
                reason=reason,
            )


def _make_client() -> httpx.AsyncClient:
    import httpx  # noqa: PLC0415 - importing takes 0.1 s; most servers do not need it

    logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO, it logs whole addresses
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    return httpx.AsyncClient(timeout=None, follow_redirects=False)  # noqa: S113 - `_post` sets one
