"""The evidence of a rollout, from a running server."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from app.cli.rollout_commands.checks import fail

if TYPE_CHECKING:
    from pathlib import Path

    from app.rollouts import Decision, Rollout
    from app.rollouts.ramp import RampProgress

TIMEOUT_SECONDS = 5.0


class EvidenceUnavailable(Exception):
    """A sentence on why a server gave no evidence."""


def ask(url: str, model: str, key: str | None) -> dict[str, Any]:
    """As `fetch_evidence`, but exits with its sentence."""
    try:
        return fetch_evidence(url, model, key)
    except EvidenceUnavailable as error:
        fail(str(error))


def fetch_evidence(url: str, model: str, key: str | None = None) -> dict[str, Any]:
    """Fetch the rollout of `model`, as the server at `url` describes it.

    key: What the server knows a caller by; default None: it asks for none.

    Raises EvidenceUnavailable.
    """
    if not url.startswith(("http://", "https://")):
        raise EvidenceUnavailable(f"--url must start with http:// or https://, got {url!r}")
    try:
        request = Request(f"{url.rstrip('/')}/models/{quote(model)}")  # noqa: S310 - http or https, see above
        if key:
            request.add_unredirected_header("authorization", f"Bearer {key}")
        with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
            described = json.load(response)
    except HTTPError as error:
        error.close()
        hint = "; does COHORT_API_KEY hold a key that it takes?" if error.code == 401 else ""
        raise EvidenceUnavailable(
            f"{url} responded {error.code} for model {model!r}{hint}"
        ) from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise EvidenceUnavailable(
            f"{url} cannot be reached: {getattr(error, 'reason', error)}"
        ) from None
    found = described.get("rollout") if isinstance(described, dict) else None
    if not isinstance(found, dict):
        raise EvidenceUnavailable(f"{url} has no rollout of {model!r}: does it use the same file?")
    return found


def rolled_back(live: Mapping[str, Any]) -> dict[int, Decision]:
    """What a server has decided about versions of a rollout that it described."""
    from app.rollouts import Decision

    stopped = [live["shadow"]] if live["shadow"] and live["shadow"]["stopped"] else []
    return {
        int(one["version"]): Decision(
            int(one["version"]), one["reason"], one["detail"], one.get("at", "")
        )
        for one in [*stopped, *(one for one in live["variants"] if one["rolled_back"])]
    }


def progress_of(live: Mapping[str, Any]) -> RampProgress:
    """How far the ramp is that a server described; at its first step where there is none."""
    from app.rollouts.ramp import FIRST_STEP, RampProgress

    if not (ramp := live.get("ramp")):
        return FIRST_STEP
    over = ramp["state"] in {"finished", "promoted"}
    step = len(ramp["steps"]) if over else ramp["step"] - 1
    return RampProgress(1, step, ramp["soaked_seconds"])


def differences(
    url: str,
    live: Mapping[str, Any],
    rollout: Rollout,
    state: Path,
    recorded: Mapping[int, Decision],
) -> Iterator[str]:
    """In sentences, where a server does not do what this machine's file and folder say.

    recorded: What the folder has of the rollout's versions.
    """
    theirs = {one["name"]: int(one["version"]) for one in live["variants"]}
    if theirs != {name: one.version for name, one in rollout.variants.items()}:
        yield f"{url} has other variants of {rollout.model}: it uses another rollouts file"
        return
    mine = rollout.with_decisions(recorded)
    here = {name for name, one in mine.variants.items() if one.rolled_back}
    there = {one["name"] for one in live["variants"] if one["rolled_back"]}
    if here != there:
        yield (
            f"{url} has rolled back {_listed(there)}, and {state} says {_listed(here)}: is it the "
            "servers' folder? Set COHORT_STATE or --state"
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
