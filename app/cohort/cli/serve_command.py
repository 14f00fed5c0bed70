"""`cohort serve`."""

import gc
import os
import sys
from pathlib import Path

import rich_click as click

from cohort.cli import options
from cohort.cli.supervisor import supervise
from cohort.workers.membership import Membership

COLLECT_WHILE_IMPORTING = 50_000
"""Objects, while all is imported that the server needs: it stays, and looking for cycles among it
after every 700 takes a twentieth of the start."""


@click.command("serve", cls=options.settings_command())
@options.models_folder
@click.pass_context
def serve_models(context: click.RichContext, /, **_: object) -> None:
    """Serve the models of FOLDER until stopped; default: those of --models.

    SIGTERM makes readiness answer 503, waits for balancers to notice, finishes what is in flight
    and exits with 0. Ctrl-C does not wait; a second signal ends it at once. SIGHUP, where it does
    not come from a terminal that closes, has all files looked at now, and with --workers replaces
    all workers, one after the other.
    """
    gc.set_threshold(COLLECT_WHILE_IMPORTING)
    _open_standard_streams()
    membership = Membership.take(os.environ)
    if membership is not None:
        membership.follow_parent()
    settings = options.settings_from(context, quiet=membership is not None)  # the parent warned
    if settings.workers > 1 and membership is None:
        from cohort.cli.worker_parent import run_workers

        run_workers(settings)
    if settings.watchdog_seconds and not os.environ.get("NOTIFY_SOCKET"):
        supervise(
            settings.watchdog_seconds,
            log_format=settings.log_format,
            stop_seconds=settings.drain_notice_seconds + settings.drain_seconds,
        )
    from cohort.process import serve

    serve(settings, membership)


def _open_standard_streams() -> None:
    """Let nothing else have the descriptors 0 to 2, where the process was started without them.

    A connection would: what a library writes to standard error would be sent to its caller.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
