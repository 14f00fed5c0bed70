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
"""GC threshold while the server's modules are imported. They stay in memory, and the default of
700 takes 5 % of the start."""


@click.command("serve", cls=options.settings_command())
@options.models_folder
@click.pass_context
def serve_models(context: click.RichContext, /, **_: object) -> None:
    """Serve the models of FOLDER until stopped; default: --models.

    On SIGTERM, readiness returns 503, the server waits for load balancers to notice, finishes
    requests in flight and exits with 0. Ctrl-C skips the wait; a second signal stops it
    immediately. SIGHUP rereads all files (ignored when sent by a closing terminal). With
    --workers, it also replaces all workers one by one.
    """
    gc.set_threshold(COLLECT_WHILE_IMPORTING)
    _open_standard_streams()
    membership = Membership.take(os.environ)
    if membership is not None:
        membership.follow_parent()
    settings = options.settings_from(context, quiet=membership is not None)  # the parent has warned
    if settings.multi_model and membership is None:
        from cohort.operating import begin_empty

        begin_empty(settings.models_folder)
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
    """Open descriptors 0 to 2 if the process was started without them.

    Otherwise a connection could get one, and receive text that a library writes to standard error.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
