"""The command line. Each command imports its dependencies when it runs, so `--help` is fast.

The commands that prepare models are in `cohort_prepare`, which a server never imports.
"""

from importlib.metadata import PackageNotFoundError, version

import rich_click as click

from cohort.cli.bench_command import bench
from cohort.cli.check_command import check
from cohort.cli.frame import CohortGroup
from cohort.cli.init_command import init
from cohort.cli.key_command import key
from cohort.cli.plan_command import plan
from cohort.cli.profile_command import profile
from cohort.cli.rollout_commands import rollout
from cohort.cli.score_command import score
from cohort.cli.serve_command import serve_models
from cohort.cli.top_command import top

__all__ = ["cli", "main"]


def main() -> None:
    """Run the `cohort` command."""
    cli(prog_name="cohort")


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        try:
            click.echo(f"cohort {version('cohort')}")
        except PackageNotFoundError:
            click.echo("cohort (run from source, not installed)")
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

    Put a model at models/NAME/VERSION/model.onnx, for example models/iris/1/model.onnx. Then:

    \b
    cohort init mine my.onnx         add a model, with a config to fill in
    cohort check                     validate models and configs
    cohort profile iris              measure speed; show the batching chosen
    cohort serve                     serve ./models on 127.0.0.1:8000
    cohort top                       show live requests and latency
    cohort bench --model iris        run a load test
    cohort score rows.csv …          score a file of rows
    cohort serve /srv/models --port 9000
    curl -s localhost:8000/predict -H 'content-type: application/json' \\
         -d '{"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}'

    Every option of serve is also an environment variable: --port 9000 is COHORT_PORT=9000.
    """


cli.add_command(serve_models)
cli.add_command(init)
cli.add_command(check)
cli.add_command(rollout)
cli.add_command(profile)
cli.add_command(plan)
cli.add_command(top)
cli.add_command(bench)
cli.add_command(score)
cli.add_command(key)
