"""The commands. Their help comes at once: what a command needs is imported when it runs."""

from importlib.metadata import PackageNotFoundError, version

import rich_click as click

from app.cli.bench_command import bench
from app.cli.check_command import check
from app.cli.init_command import init
from app.cli.key_command import key
from app.cli.prepare_commands.convert_command import convert
from app.cli.prepare_commands.frame import CohortGroup
from app.cli.prepare_commands.inspect_command import inspect_model
from app.cli.prepare_commands.optimize_command import optimize_command
from app.cli.prepare_commands.prepare_command import prepare
from app.cli.prepare_commands.publish_command import publish
from app.cli.prepare_commands.quantize_command import quantize
from app.cli.prepare_commands.verify_command import verify
from app.cli.profile_command import profile
from app.cli.rollout_commands import rollout
from app.cli.serve_command import serve_models
from app.cli.top_command import top

__all__ = ["cli", "main"]


def main() -> None:
    """What `cohort` runs."""
    cli(prog_name="cohort")


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        try:
            click.echo(f"cohort {version('cohort')}")
        except PackageNotFoundError:
            click.echo("cohort, not installed: run from its sources")
        context.exit()


@click.group(cls=CohortGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Serve ONNX models over HTTP and gRPC.

    Put a model at models/NAME/VERSION/model.onnx, say models/iris/1/model.onnx. Then:

    \b
      cohort init mine my.onnx         put a model there, with a config to fill in
      cohort check                     is everything in order?
      cohort profile iris              how fast is it, and what is chosen?
      cohort serve                     serve ./models on 127.0.0.1:8000
      cohort top                       what does it do now?
      cohort bench --model iris        how fast does it answer?
      cohort serve /srv/models --port 9000
      curl -s localhost:8000/predict -H 'content-type: application/json' \\
           -d '{"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}'

    Every option of serve is an environment variable, too: COHORT_PORT=9000 is --port 9000.
    """


cli.add_command(serve_models)
cli.add_command(init)
cli.add_command(check)
cli.add_command(rollout)
cli.add_command(profile)
cli.add_command(top)
cli.add_command(bench)
cli.add_command(key)
cli.add_command(convert)
cli.add_command(inspect_model)
cli.add_command(optimize_command)
cli.add_command(quantize)
cli.add_command(publish)
cli.add_command(verify)
cli.add_command(prepare)
