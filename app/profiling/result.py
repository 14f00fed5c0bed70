"""All that is found out about a version at load, or was found out before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from app.batching import BatchPolicy, PadPlan, plan_padding
from app.profiling.concurrency import Together
from app.profiling.measurement import FAILED, PADDED_FAILED, Profile, pad_safely, profile
from app.profiling.store import Store, log
from app.profiling.threads import ONE, Reopen, Threads, find_threads
from app.session import (
    Provider,
    ProviderPolicy,
    Session,
    SessionOptions,
    digest_model,
    machine,
    runtime_build,
)


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of a kept profile, as its file has it besides its format and key."""

    measured: str  # when, in UTC
    seconds: dict[int, float]
    max_batch_size: int
    reason: str
    padding_off: str
    row_elements: int = 0
    threads: Threads = ONE
    together: tuple[Together, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """What is known about a version here, and whether it was `kept` from an earlier start."""

    profile: Profile
    padding: PadPlan
    threads: Threads = ONE
    together: tuple[Together, ...] = ()
    measured: str = ""
    kept: bool = False


def key_for(
    path: Path,
    session: Session,
    batching: BatchPolicy,
    *,
    chain: Sequence[Provider],
    policy: ProviderPolicy,
    options: SessionOptions,
) -> dict[str, str]:
    """Everything that what is found out depends on, in words.

    The model and its external data are read for it, at about 0.7 ms per MB. Raises OSError.
    """
    batching_key = (
        f"max_batch_size={batching.max_batch_size} latency_budget_ms={batching.latency_budget_ms} "
        f"trust={batching.trust} pad={sorted(batching.pad.items())!r}"
    )
    return {
        "model": digest_model(path, options),
        "machine": machine(),
        "runtime": runtime_build(),
        "provider": f"{session.placement.active} {session.device}",
        "providers": f"{policy} {list(chain)!r}",
        "session": repr(options),
        "batching": batching_key,
    }


def profile_model(
    session: Session,
    batching: BatchPolicy,
    store: Store | None = None,
    key: Mapping[str, str] | None = None,
    *,
    fresh: bool = False,
    reopen: Reopen | None = None,
) -> ProfileResult:
    """What `session` is like: as `store` kept it for `key`, or else measured now, and kept.

    Of several processes that ask at the same time one measures. `fresh` measures in any case.
    `reopen` is given where more threads than the session has may be tried and chosen.
    """
    if store is None or key is None:
        return _measure(session, batching, reopen)
    if not fresh and (found := _recall(store, key, session, batching)):
        return found
    with store.locked(key):
        if not fresh and (found := _recall(store, key, session, batching)):
            return found
        found = _measure(session, batching, reopen)
        keep(store, key, found)
    return found


def keep(store: Store, key: Mapping[str, str], found: ProfileResult) -> None:
    """Keep `found`, unless it says that something failed, which may have had other causes."""
    failed = found.profile.reason.startswith(FAILED)
    if failed or not found.profile.seconds or found.padding.reason.startswith(PADDED_FAILED):
        return
    kept = Kept(
        found.measured,
        dict(found.profile.seconds),
        found.profile.max_batch_size,
        found.profile.reason,
        found.padding.reason,
        found.profile.row_elements,
        found.threads,
        found.together,
    )
    store.write(key, asdict(kept))


def _measure(session: Session, batching: BatchPolicy, reopen: Reopen | None) -> ProfileResult:
    model = (session.run, session.inputs, session.outputs)
    found_out, padding = profile(*model, batching), pad_safely(*model, batching)
    threads = ONE
    if reopen is not None and found_out.seconds:
        threads = find_threads(session, found_out.seconds_for(1), reopen)
    return ProfileResult(
        found_out, padding, threads, measured=datetime.now(UTC).isoformat(timespec="seconds")
    )


def _recall(
    store: Store, key: Mapping[str, str], session: Session, batching: BatchPolicy
) -> ProfileResult | None:
    content = store.read(key)
    if content is None:
        return None
    try:
        kept = _validate(content)
    except ValidationError as error:
        log.warning("kept profile is not usable and is measured anew", error=str(error))
        return None
    plan = plan_padding(session.inputs, session.outputs, batching.pad)
    padding = PadPlan(reason=kept.padding_off) if kept.padding_off else plan
    found_out = Profile(kept.seconds, kept.max_batch_size, kept.reason, kept.row_elements)
    return ProfileResult(found_out, padding, kept.threads, kept.together, kept.measured, kept=True)


def _validate(content: dict[str, Any]) -> Kept:
    fields = {name: value for name, value in content.items() if name not in ("format", "key")}
    kept = _KEPT.validate_python(fields)
    return replace(kept, seconds=dict(sorted(kept.seconds.items())))


_KEPT = TypeAdapter(Kept)
