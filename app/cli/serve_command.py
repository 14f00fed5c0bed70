"""`cohort serve`."""

import rich_click as click

from app.cli import options


@click.command("serve", cls=options.settings_command())
@click.pass_context
def serve_models(context: click.RichContext, /, **_: object) -> None:
    """Serve the models until stopped.

    SIGTERM makes readiness answer 503, waits for balancers to notice, finishes what is in flight
    and exits with 0.
    """
    settings = options.settings_from(context)
    from app.main import serve

    serve(settings)
