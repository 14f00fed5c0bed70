"""What servers recorded in the state folder, as a command reads it."""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING

import rich_click as click

from cohort.cli.options import fail

if TYPE_CHECKING:
    from cohort.rollouts import Rollout
    from cohort.rollouts.decision_store import Recorded
    from cohort.rollouts.ramp import RampProgress
    from cohort.settings import Settings


def read_recorded(settings: Settings, *, needed: bool = False) -> Recorded:
    """Read what servers decided; if that fails, warn, or exit where it is `needed`."""
    from cohort.rollouts import DecisionStore
    from cohort.rollouts.decision_store import Recorded

    try:
        recorded = DecisionStore(settings.state).read()
    except OSError as error:
        sentence = f"{settings.state} cannot be read: {error.strerror}"
        if needed:
            fail(f"{sentence}, so it is not known what is rolled back")
        click.echo(f"Warning: {sentence}", err=True)
        return Recorded({}, {}, ())
    if needed and (sentence := no_folder(settings)):
        fail(sentence)
    for problem in recorded.problems:
        click.echo(f"Warning: {problem}", err=True)
    return recorded


def no_folder(settings: Settings) -> str:
    """A sentence where there is no state folder, so that nothing is known; else empty."""
    if settings.state.is_dir():
        return ""
    return (
        f"no state folder at {settings.state}, so it is not known what is rolled back; is it the "
        "servers'? Set COHORT_STATE or --state"
    )


def ramp_progress(recorded: Recorded, rollout: Rollout) -> RampProgress:
    """How far a ramp is; at its first step where nothing is known of it."""
    from cohort.rollouts.ramp import FIRST_STEP

    progress = recorded.ramps.get(rollout.model, {}).get(rollout.ramp_key, FIRST_STEP)
    return progress if rollout.ramp is None else rollout.ramp.believe(progress)


def user_here() -> str:
    """Who runs this command, and on which machine, for the record of a clear."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"user {os.getuid()}"
    if before := os.environ.get("SUDO_USER"):
        user = f"{before} as {user}"
    return f"{user} on {socket.gethostname()}"
