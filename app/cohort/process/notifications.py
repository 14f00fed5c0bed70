"""Notifications to operators: their events and contents."""

from __future__ import annotations

import socket
from hashlib import blake2b

from cohort.notifications.webhook_secret import SecretFile
from cohort.notifications.webhooks import Notification, Webhooks, split_addresses
from cohort.registry import VersionUnbatched
from cohort.rollouts import RampMoved, RolledBack, RolloutEvent
from cohort.settings import Settings


def make_webhooks(settings: Settings) -> tuple[Webhooks | None, SecretFile | None]:
    """Return the webhooks in the settings and their secret; None if there are none.

    Raises ConfigProblems if the secret to sign with is missing.
    """
    if settings.webhooks is None or settings.webhook_secret_file is None:
        return None, None
    secret = SecretFile(settings.webhook_secret_file)
    urls = split_addresses(settings.webhooks.get_secret_value())
    return Webhooks(urls, lambda: secret.key), secret


def notification_of(event: RolloutEvent) -> Notification | None:
    """Return the notification of an event; None if there is none or another process sends it."""
    match event:
        case RolledBack(decided_here=True):
            return Notification(
                _id("rolled_back", event.incident),
                "rollout.rolled_back",
                {
                    "model": event.model,
                    "version": str(event.version),
                    "variants": list(event.variants),
                    "shadow_stopped": event.shadow,
                    "reason": event.reason,
                    "detail": event.detail,
                    "replica": socket.gethostname(),
                },
            )
        case RampMoved(decided_here=True):
            over = event.step == event.steps
            kind = "ramp_step"
            if over:
                kind = "ramp_promoted" if event.percent == 100 else "ramp_finished"
            return Notification(
                _id(kind, event.model, event.run, event.step),
                f"rollout.{kind}",
                {
                    "model": event.model,
                    "version": str(event.version),
                    "variant": event.variant,
                    "percent": event.percent,
                    "step": min(event.step + 1, event.steps),
                    "steps": event.steps,
                    "replica": socket.gethostname(),
                },
            )
    return None


def notification_of_unbatched(event: VersionUnbatched) -> Notification:
    """Return the notification that requests of a version changed each other's answers."""
    return Notification(
        _id("rows_mixed", event.model, event.number, event.reason),
        "model.rows_mixed",
        {
            "model": event.model,
            "version": str(event.number),
            "reason": event.reason,
            "replica": socket.gethostname(),
        },
    )


def _id(*parts: object) -> str:
    content = "\0".join(map(str, parts))
    return f"msg_{blake2b(content.encode(), digest_size=16).hexdigest()}"
