"""Read what servers recorded in the state folder."""

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
    """Read the recorded rollbacks. If that fails, warn, or exit if they are `needed`."""
    from cohort.rollouts import DecisionStore
    from cohort.rollouts.decision_store import Recorded

    try:
        recorded = DecisionStore(settings.state).read()
    except OSError as error:
        sentence = f"{settings.state} cannot be read: {error.strerror}"
        if needed:
            fail(f"{sentence}, so rollbacks are unknown")
        click.echo(f"Warning: {sentence}", err=True)
        return Recorded({}, {}, ())
    if needed and (sentence := no_folder(settings)):
        fail(sentence)
    for problem in recorded.problems:
        click.echo(f"Warning: {problem}", err=True)
    return recorded


def no_folder(settings: Settings) -> str:
    """Return an error message if there is no state folder; else an empty string."""
    if settings.state.is_dir():
        return ""
    return (
        f"no state folder at {settings.state}, so rollbacks are unknown; is this the folder "
        "that the servers use? Set COHORT_STATE or --state"
    )


def ramp_progress(recorded: Recorded, rollout: Rollout) -> RampProgress:
    """Return the progress of a ramp; FIRST_STEP if none is recorded."""
    from cohort.rollouts.ramp import FIRST_STEP

    progress = recorded.ramps.get(rollout.model, {}).get(rollout.ramp_key, FIRST_STEP)
    return progress if rollout.ramp is None else rollout.ramp.believe(progress)


def user_here() -> str:
    """Return the user and host that run this command, for the record of a clear."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"user {os.getuid()}"
    if before := os.environ.get("SUDO_USER"):
        user = f"{before} as {user}"
    return f"{user} on {socket.gethostname()}"
