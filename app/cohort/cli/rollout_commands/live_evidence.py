"""The evidence of a rollout, from a running server."""

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
"""For all of an answer, however it arrives."""

MAX_DESCRIBED_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


class EvidenceUnavailable(Exception):
    """A sentence on why a server gave no evidence."""


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is an answer like any other: its body would be read, however long it is."""

    def redirect_request(self, *_: object) -> None:
        return None


def ask(url: str, model: str, key: str | None) -> dict[str, Any]:
    """As `fetch_evidence`, but exits with its sentence."""
    try:
        return fetch_evidence(url, model, key)
    except EvidenceUnavailable as error:
        fail(str(error))


def fetch_evidence(
    url: str, model: str, key: str | None = None, *, seconds: float = ANSWER_SECONDS
) -> dict[str, Any]:
    """Fetch the rollout of `model`, as the server at `url` describes it.

    key: What the server knows a caller by, spaces and line ends around it aside; default None: it
        asks for none.
    seconds: How long that may take, all in all.

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
        hint = "; does COHORT_API_KEY hold a key that it takes?" if error.code == 401 else ""
        if 300 <= error.code < 400:
            hint = "; give --url the address that it redirects to"
        raise EvidenceUnavailable(
            f"{url} responded {error.code} for model {model!r}{hint}"
        ) from None
    except (URLError, InvalidURL, OSError, UnicodeError) as error:
        raise EvidenceUnavailable(
            f"{url} cannot be reached: {getattr(error, 'reason', error)}"
        ) from None
    except HTTPException:  # its text may be bytes as they came
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
    raise EvidenceUnavailable(f"{url} has no rollout of {model!r}: does it use the same file?")


def _get(address: str, key: str) -> bytes:
    """Give an answer's body, or MAX_DESCRIBED_BYTES and one more where it is longer."""
    request = Request(address)  # noqa: S310 - http or https, as `fetch_evidence` sees to
    if key:
        request.add_unredirected_header("authorization", f"Bearer {key}")
    with build_opener(_NoRedirects).open(request, timeout=CONNECT_SECONDS) as response:
        return response.read(MAX_DESCRIBED_BYTES + 1)  # type: ignore[no-any-return]


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Give what `call` does; where it takes longer, raise TimeoutError and leave its thread alone.

    A socket's own timeout is for each read: a byte now and then passes it for ever.
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
        raise TimeoutError(f"no whole answer within {seconds:g} s") from None


def _not_cohort(url: str) -> EvidenceUnavailable:
    return EvidenceUnavailable(f"{url} does not answer as a Cohort server does")


def rolled_back(live: Mapping[str, Any]) -> dict[int, Decision]:
    """What a server has decided about versions of a rollout that it described."""
    from cohort.rollouts import Decision

    stopped = [live["shadow"]] if live["shadow"] and live["shadow"]["stopped"] else []
    return {
        int(one["version"]): Decision(
            int(one["version"]), one["reason"], one["detail"], one.get("at", "")
        )
        for one in [*stopped, *(one for one in live["variants"] if one["rolled_back"])]
    }


def progress_of(live: Mapping[str, Any]) -> RampProgress:
    """How far the ramp is that a server described; at its first step where there is none."""
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
