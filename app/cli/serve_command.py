"""`cohort serve`."""

import os
import signal

import rich_click as click

from app.cli import options


@click.command("serve", cls=options.settings_command())
@click.pass_context
def serve_models(context: click.RichContext, /, **_: object) -> None:
    """Serve the models until stopped.

    SIGTERM makes readiness answer 503, waits for balancers to notice, finishes what is in flight
    and exits with 0. Ctrl-C does not wait; a second signal ends it at once. SIGHUP, where it does
    not come from a terminal that closes, has all files looked at now.
    """
    if hasattr(signal, "SIGHUP") and not os.isatty(0):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server takes it
    settings = options.settings_from(context)
    from app.main import serve

    serve(settings)
