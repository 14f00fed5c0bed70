"""Fetch the evidence of a rollout from a running server."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from http.client import HTTPException, InvalidURL
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cohort.cli.options import fail
from cohort.cli.rollout_commands.described_rollout import checked

if TYPE_CHECKING:
    from pathlib import Path

    from cohort.rollouts import Decision, Rollout
    from cohort.rollouts.ramp import RampProgress

CONNECT_SECONDS = 5.0

ANSWER_SECONDS = 10.0
"""Time limit for a whole response."""

MAX_DESCRIBED_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


class EvidenceUnavailable(Exception):
    """Reason why a server's evidence cannot be read."""


class _NoRedirects(HTTPRedirectHandler):
    """Do not follow redirects: urllib would read their bodies without a limit."""

    def redirect_request(self, *_: object) -> None:
        return None


def ask(url: str, model: str, key: str | None) -> dict[str, Any]:
    """Call `fetch_evidence`; exit with its message on an error."""
    try:
        return fetch_evidence(url, model, key)
    except EvidenceUnavailable as error:
        fail(str(error))


def fetch_evidence(
    url: str, model: str, key: str | None = None, *, seconds: float = ANSWER_SECONDS
) -> dict[str, Any]:
    """Fetch the rollout of `model` from the server at `url`.

    key: API key; surrounding white space is ignored; default None: no key.
    seconds: Time limit for the whole response.

    Raises EvidenceUnavailable.
    """
    if not url.startswith(("http://", "https://")):
        raise EvidenceUnavailable(f"--url must start with http:// or https://, got {url!r}")
    if not ((key := (key or "").strip()).isascii() and key.isprintable()):
        raise EvidenceUnavailable(
            "the key in COHORT_API_KEY or --api-key must be one line of ASCII without control "
            "characters"
        )
    try:
        answer = _within(seconds, lambda: _get(f"{url.rstrip('/')}/models/{quote(model)}", key))
    except HTTPError as error:
        error.close()
        hint = "; does the server accept the key in COHORT_API_KEY?" if error.code == 401 else ""
        if 300 <= error.code < 400:
            hint = "; set --url to the address that it redirects to"
        raise EvidenceUnavailable(
            f"{url} responded {error.code} for model {model!r}{hint}"
        ) from None
    except (URLError, InvalidURL, OSError, UnicodeError) as error:
        raise EvidenceUnavailable(
            f"{url} cannot be reached: {getattr(error, 'reason', error)}"
        ) from None
    except HTTPException:  # its text may have raw bytes of the response
        raise _not_cohort(url) from None
    if len(answer) > MAX_DESCRIBED_BYTES:
        raise _not_cohort(url)
    try:
        described = json.loads(answer)
        found = described.get("rollout") if isinstance(described, dict) else described
        if found is not None:
            return checked(found)
    except (ValueError, RecursionError):
        raise _not_cohort(url) from None
    raise EvidenceUnavailable(
        f"{url} has no rollout of {model!r}: does the server use the same rollouts file?"
    )


def _get(address: str, key: str) -> bytes:
    """Return a response body, cut to MAX_DESCRIBED_BYTES + 1 bytes."""
    request = Request(address)  # noqa: S310 - http or https, checked by `fetch_evidence`
    if key:
        request.add_unredirected_header("authorization", f"Bearer {key}")
    with build_opener(_NoRedirects).open(request, timeout=CONNECT_SECONDS) as response:
        return response.read(MAX_DESCRIBED_BYTES + 1)  # type: ignore[no-any-return]


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of `call`. After `seconds`, raise TimeoutError; its thread continues.

    A socket timeout limits each read only, and never ends a slow response.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised below
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise
        raise TimeoutError(f"incomplete response after {seconds:g} s") from None


def _not_cohort(url: str) -> EvidenceUnavailable:
    return EvidenceUnavailable(f"{url} does not respond as a Cohort server")


def rolled_back(live: Mapping[str, Any]) -> dict[int, Decision]:
    """Return the rollbacks in a rollout that a server described, by version."""
    from cohort.rollouts import Decision

    stopped = [live["shadow"]] if live["shadow"] and live["shadow"]["stopped"] else []
    return {
        int(one["version"]): Decision(
            int(one["version"]), one["reason"], one["detail"], one.get("at", "")
        )
        for one in [*stopped, *(one for one in live["variants"] if one["rolled_back"])]
    }


def progress_of(live: Mapping[str, Any]) -> RampProgress:
    """Return the progress of the ramp that a server described; FIRST_STEP if there is no ramp."""
    from cohort.rollouts.ramp import FIRST_STEP, RampProgress

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
    """Yield differences between a server and this machine's rollouts file and state folder.

    recorded: Rollbacks in the state folder, by version.
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
            f"{url} has rolled back {_listed(there)}, but {state} contains {_listed(here)}: is "
            "this the servers' folder? Set COHORT_STATE or --state"
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
