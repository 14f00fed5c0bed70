"""The commands. They edit the rollouts file; only `clear` edits the state folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import rich_click as click

from cohort.cli import options
from cohort.cli.options import fail
from cohort.cli.rollout_commands.arguments import parse_pairs, parse_version, parse_weight
from cohort.cli.rollout_commands.checks import (
    check_first,
    check_highest,
    check_model,
    check_version,
    no_rollout,
    no_variant,
    read_file,
    read_signatures,
    rollout_of,
    variant_of,
)
from cohort.cli.rollout_commands.recorded import no_folder, ramp_progress, read_recorded, user_here

if TYPE_CHECKING:
    from cohort.cli.rollout_commands.yaml_edit import RolloutsFile
    from cohort.rollouts import Rollout
    from cohort.settings import Settings

DRY_RUN = click.option("--dry-run", is_flag=True, help="Show changes without writing them.")

ASK = click.option("--url", metavar="URL", help="Server to query for rollbacks.")

KEY = click.option(
    "--api-key",
    metavar="KEY",
    envvar="COHORT_API_KEY",
    show_envvar=True,
    help="API key for the server at --url.",
)

NONE_NAMED: Mapping[str, int] = {}

EDITS = options.settings_command("models", "rollouts", "state")


@click.group()
def rollout() -> None:
    """Split a model's traffic between versions, and compare them.

    \b
    cohort rollout set digits stable=99 canary=1 --version stable=1 --version canary=2
    cohort rollout status digits --url http://127.0.0.1:8000
    cohort rollout set digits stable=90 canary=10
    cohort rollout promote digits canary     or   cohort rollout abort digits

    These commands edit the rollouts file. Servers only read it, and apply changes within seconds.
    Servers record rollbacks in their state folder; clear ends them there.
    """


@rollout.command("status", cls=EDITS)
@click.argument("model", required=False)
@click.option("--url", metavar="URL", help="Server to query for live shares and evidence.")
@KEY
@click.pass_context
def status_(
    context: click.RichContext,
    /,
    model: str | None,
    url: str | None,
    api_key: str | None,
    **_: object,
) -> None:
    """Show variants, shares, rollbacks, shadow and guard of MODEL; default: all models.

    \b
    cohort rollout status
    cohort rollout status digits --url http://127.0.0.1:8000
    """
    settings = options.settings_from(context)
    from cohort.cli.rollout_commands.display import show_status
    from cohort.cli.rollout_commands.live_evidence import ask, differences, progress_of, rolled_back

    file = read_file(settings)
    known = read_recorded(settings)
    if model is not None and model not in file.configs:
        no_rollout(file, model)
    if url is None and (sentence := no_folder(settings)):
        click.echo(f"Warning: {sentence}, or --url", err=True)
    if not file.configs:
        click.echo(f"No rollouts in {settings.rollouts}.")
    for name in [model] if model else file.configs:
        config, recorded = file.configs[name], known.decisions.get(name, {})
        if url is None:
            show_status(config, recorded, ramp_progress(known, config.rollout), None)
            continue
        live = ask(url, name, api_key)
        for sentence in differences(url, live, config.rollout, settings.state, recorded):
            click.echo(f"Warning: {sentence}.", err=True)
        progress = progress_of(live)
        if config.rollout.ramp is not None:
            progress = config.rollout.ramp.believe(progress)
        show_status(config, rolled_back(live), progress, live)


@rollout.command("set", cls=EDITS)
@click.argument("model")
@click.argument("weights", nargs=-1, required=True, metavar="VARIANT=WEIGHT...")
@click.option(
    "--version",
    "versions",
    multiple=True,
    metavar="VARIANT=NUMBER",
    help="Version of a new variant, or a new version of an existing one.",
)
@DRY_RUN
@click.pass_context
def set_(
    context: click.RichContext,
    /,
    model: str,
    weights: tuple[str, ...],
    versions: tuple[str, ...],
    dry_run: bool,
    **_: object,
) -> None:
    """Set weights of MODEL's variants. Other variants keep theirs.

    Weights need not add up to 100: a variant's share is its weight divided by the sum. With percent
    signs, weights are shares, and the other variants divide the rest in the same ratio as before.

    \b
    cohort rollout set digits canary=5%
    cohort rollout set digits stable=95 canary=5
    cohort rollout set digits canary=1 --version canary=2     a new variant
    cohort rollout set digits stable=99 canary=1 --version stable=1 --version canary=2
    """
    pairs = parse_pairs(weights)
    given = {name: parse_weight(text.removesuffix("%")) for name, text in pairs.items()}
    percents = [text.endswith("%") for text in pairs.values()]
    if any(percents) and not all(percents):
        raise click.BadParameter("weights must all have a percent sign, or none")
    numbers = {name: parse_version(text) for name, text in parse_pairs(versions).items()}
    settings = options.settings_from(context)
    from cohort.rollouts import Rollout, Variant

    file = read_file(settings)
    config = file.configs.get(model)
    if config is None:
        check_model(settings, file, model)
        if any(percents):
            check_first(model, given, numbers)
    ramp = config.rollout.ramp if config else None
    if ramp is not None and ramp.variant in given:
        fail(
            f"the ramp of {ramp.variant} sets its share; to set it by hand, first run: "
            f"cohort rollout abort {model} {ramp.variant}"
        )
    variants = dict(config.rollout.variants) if config else {}
    for name in [*given, *(name for name in numbers if name not in given)]:
        if (known := variants.get(name)) is not None:
            version = numbers.get(name, known.version)
            variants[name] = Variant(name, version, given.get(name, known.weight))
        elif name not in numbers or name not in given:
            missing = f"--version {name}=NUMBER" if name in given else f"{name}=WEIGHT"
            no_variant(model, name, variants, f"; a new variant also needs {missing}")
        else:
            variants[name] = Variant(name, numbers[name], given[name])
    if config is not None:
        wanted = replace(config.rollout, variants=variants)
    else:
        wanted = Rollout(model, variants, next(iter(variants)))
    if any(percents):
        try:
            wanted = wanted.with_shares(given)
        except ValueError as error:
            fail(str(error))
    _edit(settings, file, model, wanted, dry_run=dry_run, named=numbers)


@rollout.command(cls=EDITS)
@click.argument("model")
@click.argument("variant")
@ASK
@KEY
@click.option("--end", is_flag=True, help="Remove MODEL's rollout from the file.")
@DRY_RUN
@click.pass_context
def promote(
    context: click.RichContext,
    /,
    model: str,
    variant: str,
    url: str | None,
    api_key: str | None,
    end: bool,
    dry_run: bool,
    **_: object,
) -> None:
    """Send all of MODEL's traffic to VARIANT, which becomes the baseline and the only variant.

    Other variants, and a shadow of the same version, are removed from the file. Servers may then
    unload their versions. To keep a variant loaded, use `cohort rollout set MODEL old=0` instead.

    With --end the rollout is removed. The highest version with an unchanged signature then serves
    all requests, and must be VARIANT's.

    \b
    cohort rollout promote digits canary
    cohort rollout promote digits canary --end
    """
    settings = options.settings_from(context)
    from cohort.cli.rollout_commands.display import why
    from cohort.cli.rollout_commands.live_evidence import ask, differences, rolled_back

    file = read_file(settings)
    before = rollout_of(file, model)
    chosen = variant_of(before, variant)
    live = None if url is None else ask(url, model, api_key)
    recorded = read_recorded(settings, needed=live is None).decisions.get(model, {})
    decisions = recorded if live is None else rolled_back(live)
    decided = decisions.get(before.variants[chosen].version)
    if decided is not None and chosen != before.baseline:
        fail(
            f"version {decided.version} of {model} is rolled back ({why(decided)}); to promote it "
            f"anyway, first run: cohort rollout clear {model} {chosen}"
        )
    if url is not None and live is not None:
        for sentence in differences(url, live, before, settings.state, recorded):
            fail(sentence)
    version = before.variants[chosen].version
    if end:
        check_highest(settings, model, version)
    _edit(settings, file, model, before.promoted(chosen), dry_run=dry_run, end=end)


@rollout.command(cls=EDITS)
@click.argument("model")
@click.argument("variant", required=False)
@DRY_RUN
@click.pass_context
def abort(
    context: click.RichContext, /, model: str, variant: str | None, dry_run: bool, **_: object
) -> None:
    """Send the callers of VARIANT, or of all variants, to the baseline.

    The variant stays in the file with weight 0. Its weight is added to the baseline's, so the
    shares of other variants do not change.

    \b
    cohort rollout abort digits
    cohort rollout abort digits canary --dry-run
    """
    settings = options.settings_from(context)
    file = read_file(settings)
    before = rollout_of(file, model)
    if variant is not None and variant_of(before, variant) == before.baseline:
        fail(f"{variant} is the baseline of {model} and cannot be aborted")
    wanted = before.aborted([variant] if variant else before.candidates)
    _edit(settings, file, model, wanted, dry_run=dry_run)


@rollout.command(cls=EDITS)
@click.argument("model")
@click.argument("variant", required=False)
@ASK
@KEY
@click.pass_context
def clear(
    context: click.RichContext,
    /,
    model: str,
    variant: str | None,
    url: str | None,
    api_key: str | None,
    **_: object,
) -> None:
    """End the rollback of VARIANT, or all rollbacks of MODEL; the version is judged again.

    Edits the state folder, which must be the servers' folder (see --state). The record, and each
    server's log, state who cleared the rollback and when.

    \b
    cohort rollout clear digits canary
    cohort rollout clear digits --state /var/lib/cohort
    """
    settings = options.settings_from(context)
    from cohort.cli.rollout_commands.display import why
    from cohort.cli.rollout_commands.live_evidence import ask, differences
    from cohort.rollouts import DecisionStore

    decided = recorded = read_recorded(settings, needed=True).decisions.get(model, {})
    if variant is not None or url is not None:
        before = rollout_of(read_file(settings), model)
    if variant is not None:
        version = before.variants[variant_of(before, variant)].version
        decided = {version: decided[version]} if version in decided else {}
    if url is not None:
        live = ask(url, model, api_key)
        for sentence in differences(url, live, before, settings.state, recorded):
            fail(sentence)
    if not decided:
        what = f"{model} {variant}" if variant else model
        click.echo(
            f"Nothing to clear: no rollback of {what} in {settings.state}; "
            "use --url to query a server."
        )
    for version, decision in decided.items():
        try:
            DecisionStore(settings.state, by=user_here()).clear(model, version)
        except OSError as error:
            fail(f"{settings.state} cannot be written: {error.strerror}")
        click.echo(f"Cleared the rollback of version {version} of {model} ({why(decision)}).")
    if decided:
        click.echo("Servers that share this folder apply it within seconds.")


def _edit(
    settings: Settings,
    file: RolloutsFile,
    model: str,
    wanted: Rollout,
    *,
    dry_run: bool,
    end: bool = False,
    named: Mapping[str, int] = NONE_NAMED,
) -> None:
    """Write the file with the rollout `wanted`, and show the changes.

    named: Versions from the command line, by variant; they must exist.
    """
    from cohort.cli.rollout_commands.display import show_change
    from cohort.cli.rollout_commands.yaml_edit import rewrite
    from cohort.errors import ConfigInvalid

    config = file.configs.get(model)
    before = config.rollout if config is not None else None
    try:
        text = rewrite(file, model, None if end else wanted)
    except ConfigInvalid as error:
        fail(str(error))
    for name, version in named.items():
        check_version(settings, model, name, version)
    known = read_recorded(settings)
    step = ramp_progress(known, before).step if before is not None else 0
    show_change(before, wanted, known.decisions.get(model, {}), step=step, ended=end)
    for version in sorted(wanted.versions):  # including versions that were in the file before
        folder = settings.models_folder / model
        if folder.is_dir() and not (folder / str(version)).is_dir():
            click.echo(f"Warning: version {version} not found in {folder}.", err=True)
    for sentence in wanted.misfits(read_signatures(settings, model, wanted.versions)):
        click.echo(f"Warning: {sentence}.", err=True)
    if text == (file.text or ""):
        click.echo("Nothing to change.")
        return
    if dry_run:
        click.echo("Dry run: nothing was written.")
        return
    try:
        if file.text is None:
            text = _schema_comment(settings, file) + text
        file.write(text)
    except ConfigInvalid as error:
        fail(str(error))
    except OSError as error:
        fail(f"{settings.rollouts} cannot be written: {error.strerror}")
    click.echo(f"Wrote {settings.rollouts}; servers that watch it apply it within seconds.")


def _schema_comment(settings: Settings, file: RolloutsFile) -> str:
    """Return a comment that links the schema for editors; "" if it cannot be written."""
    from cohort.cli.editor_schemas import ROLLOUTS_SCHEMA, keep_schemas, schema_comment

    try:
        if settings.models_folder.is_dir():
            keep_schemas(settings.models_folder)
            return schema_comment(file.path, settings.models_folder, ROLLOUTS_SCHEMA)
    except (OSError, ValueError):
        pass
    return ""
