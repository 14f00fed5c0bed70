"""The commands. The file is the operator's, and edited; of the state only rollbacks are ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import isfinite, nan
from typing import TYPE_CHECKING, NoReturn

import rich_click as click

from app.cli import options

if TYPE_CHECKING:
    from app.cli.rollout_commands.yaml_edit import RolloutsFile
    from app.rollouts import Decision, Rollout
    from app.settings import Settings

DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")

EDITS = options.settings_command("models", "rollouts", "state")


@click.group()
def rollout() -> None:
    """Split a model's callers between versions, and follow how that goes.

    \b
      cohort rollout set digits stable=99 canary=1 --version stable=1 --version canary=2
      cohort rollout status digits --url http://127.0.0.1:8000
      cohort rollout set digits stable=90 canary=10
      cohort rollout promote digits canary     or   cohort rollout abort digits

    Weights stand in the rollouts file, which is yours: servers follow it within seconds, and never
    write it. What a server rolled back stands in its state folder, and ends by clear.
    """


@rollout.command(cls=EDITS)
@click.argument("model", required=False)
@click.option("--url", metavar="URL", help="A server to ask for its evidence.")
@click.pass_context
def status(context: click.RichContext, /, model: str | None, url: str | None, **_: object) -> None:
    """Show variants, shares, rollbacks, shadow and guard, of MODEL or of all.

    \b
      cohort rollout status
      cohort rollout status digits --url http://127.0.0.1:8000
    """
    settings = options.read(context)
    from app.cli.rollout_commands.display import show_status
    from app.cli.rollout_commands.live_evidence import Unanswered, ask

    file = _read(settings)
    decisions = _decisions(settings)
    if model is not None and model not in file.configs:
        _no_rollout(file, model)
    if not file.configs:
        click.echo(f"No rollouts: {settings.rollouts} has none.")
    for name in [model] if model else file.configs:
        live = None
        if url is not None:
            try:
                live = ask(url, name)
            except Unanswered as error:
                _fail(str(error))
        show_status(file.configs[name], decisions.get(name, {}), live)


@rollout.command("set", cls=EDITS)
@click.argument("model")
@click.argument("weights", nargs=-1, required=True, metavar="VARIANT=WEIGHT...")
@click.option(
    "--version",
    "versions",
    multiple=True,
    metavar="VARIANT=NUMBER",
    help="The version of a new variant, or another one for a known variant.",
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
    """Set weights of MODEL's variants; those not named keep theirs.

    Weights need not add up to anything: a variant's share is its weight in the sum of all.

    \b
      cohort rollout set digits stable=95 canary=5
      cohort rollout set digits canary=1 --version canary=2     a variant that is new
      cohort rollout set digits stable=99 canary=1 --version stable=1 --version canary=2
    """
    given = {name: _weight(text) for name, text in _pairs(weights)}
    numbers = {name: _version(text) for name, text in _pairs(versions)}
    settings = options.read(context)
    from app.rollouts import Rollout, Variant

    file = _read(settings)
    config = file.configs.get(model)
    if config is None:
        _check_model(settings, file, model)
    variants = dict(config.rollout.variants) if config else {}
    for name in [*given, *(name for name in numbers if name not in given)]:
        if (known := variants.get(name)) is not None:
            version = numbers.get(name, known.version)
            variants[name] = Variant(name, version, given.get(name, known.weight))
        elif name not in numbers or name not in given:
            missing = f"--version {name}=NUMBER" if name in given else f"{name}=WEIGHT"
            _no_variant(model, name, variants, f"; a new one needs {missing}, too")
        else:
            variants[name] = Variant(name, numbers[name], given[name])
    if config is not None:
        wanted = replace(config.rollout, variants=variants)
    else:
        wanted = Rollout(model, variants, next(iter(variants)))
    _edit(settings, file, model, wanted, dry_run=dry_run)


@rollout.command(cls=EDITS)
@click.argument("model")
@click.argument("variant")
@click.option("--end", is_flag=True, help="Take MODEL's rollout out of the file altogether.")
@DRY_RUN
@click.pass_context
def promote(
    context: click.RichContext, /, model: str, variant: str, end: bool, dry_run: bool, **_: object
) -> None:
    """Give all of MODEL's callers to VARIANT, which becomes the baseline and the only variant.

    The others leave the file, and so does a shadow of the same version; a server may unload their
    versions. To keep them at hand give them weight 0 instead: cohort rollout set MODEL old=0.
    With --end the rollout ends: the highest version answers, which must be VARIANT's.

    \b
      cohort rollout promote digits canary
      cohort rollout promote digits canary --end
    """
    settings = options.read(context)
    from app.cli.rollout_commands.display import why

    file = _read(settings)
    before = _rollout_of(file, model)
    chosen = _variant_of(before, variant)
    decisions = _decisions(settings, needed=True).get(model, {})
    decided = decisions.get(before.variants[chosen].version)
    if decided is not None and chosen != before.baseline:
        _fail(
            f"version {decided.version} of {model} is rolled back ({why(decided)}); if it is to "
            f"be promoted all the same, first: cohort rollout clear {model} {chosen}"
        )
    version = before.variants[chosen].version
    if end:
        _check_highest(settings, model, version)
    shadow = before.shadow
    wanted = replace(
        before,
        variants={chosen: replace(before.variants[chosen], weight=100)},
        baseline=chosen,
        shadow=None if shadow is None or shadow.version == version else shadow,
    )
    _edit(settings, file, model, wanted, dry_run=dry_run, end=end)


@rollout.command(cls=EDITS)
@click.argument("model")
@click.argument("variant", required=False)
@DRY_RUN
@click.pass_context
def abort(
    context: click.RichContext, /, model: str, variant: str | None, dry_run: bool, **_: object
) -> None:
    """Give the callers of VARIANT, or of all but the baseline, to the baseline.

    The variant stays in the file with the weight 0, and its weight goes to the baseline, so that no
    other variant's share grows.

    \b
      cohort rollout abort digits
      cohort rollout abort digits canary --dry-run
    """
    settings = options.read(context)
    file = _read(settings)
    before = _rollout_of(file, model)
    if variant is not None and _variant_of(before, variant) == before.baseline:
        _fail(f"{variant} is the baseline of {model}: there is nobody to give its callers to")
    names = [variant] if variant else [one for one in before.variants if one != before.baseline]
    variants = dict(before.variants)
    freed = sum(variants[name].weight for name in names)
    baseline = variants[before.baseline]
    variants |= {name: replace(variants[name], weight=0.0) for name in names}
    variants[baseline.name] = replace(baseline, weight=baseline.weight + freed)
    _edit(settings, file, model, replace(before, variants=variants), dry_run=dry_run)


@rollout.command(cls=EDITS)
@click.argument("model")
@click.argument("variant", required=False)
@click.pass_context
def clear(context: click.RichContext, /, model: str, variant: str | None, **_: object) -> None:
    """End the rollback of VARIANT, or all of MODEL's: it gets its weight back, and is judged anew.

    Works on the state folder, which must be the servers' own: see --state.

    \b
      cohort rollout clear digits canary
      cohort rollout clear digits --state /var/lib/cohort
    """
    settings = options.read(context)
    from app.cli.rollout_commands.display import why
    from app.rollouts import DecisionStore

    decided = _decisions(settings, needed=True).get(model, {})
    if variant is not None:
        before = _rollout_of(_read(settings), model)
        version = before.variants[_variant_of(before, variant)].version
        decided = {version: decided[version]} if version in decided else {}
    if not decided:
        what = f"{model} {variant}" if variant else model
        click.echo(f"Nothing to clear: {settings.state} holds no rollback of {what}.")
    for version, decision in decided.items():
        try:
            DecisionStore(settings.state).clear(model, version)
        except OSError as error:
            _fail(f"the state folder {settings.state} does not forget: {error.strerror}")
        click.echo(f"Cleared: version {version} of {model} was rolled back ({why(decision)}).")
    if decided:
        click.echo("Servers that share this folder follow within seconds.")


def _edit(
    settings: Settings,
    file: RolloutsFile,
    model: str,
    wanted: Rollout,
    *,
    dry_run: bool,
    end: bool = False,
) -> None:
    from app.cli.rollout_commands.display import show_change
    from app.cli.rollout_commands.yaml_edit import rewrite
    from app.errors import ConfigInvalid

    config = file.configs.get(model)
    before = config.rollout if config is not None else None
    try:
        text = rewrite(file, model, None if end else wanted)
    except ConfigInvalid as error:
        _fail(str(error))
    decisions = _decisions(settings).get(model, {})
    show_change(before, wanted, decisions, ended=end)
    for version in sorted(wanted.versions):
        folder = settings.models / model
        if folder.is_dir() and not (folder / str(version)).is_dir():
            click.echo(f"Warning: version {version} is not in {folder}.", err=True)
    if text == (file.text or ""):
        click.echo("Nothing to change.")
        return
    if dry_run:
        click.echo("Nothing was written: --dry-run.")
        return
    try:
        file.write(text)
    except ConfigInvalid as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{settings.rollouts} cannot be written: {error.strerror}")
    click.echo(f"Wrote {settings.rollouts}; servers that watch it follow within seconds.")


# -- what may be wrong


def _fail(sentence: str) -> NoReturn:
    click.echo(f"Error: {sentence}", err=True)
    raise SystemExit(options.PROBLEMS)


def _read(settings: Settings) -> RolloutsFile:
    from app.cli.rollout_commands.yaml_edit import RolloutsFile
    from app.repository import ConfigProblems

    try:
        return RolloutsFile.read(settings.rollouts)
    except ConfigProblems as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        _fail("the rollouts file is broken; mend it first, nothing was changed")


def _decisions(settings: Settings, *, needed: bool = False) -> Mapping[str, Mapping[int, Decision]]:
    """What servers decided; where that cannot be read, a warning, or the end if it is `needed`."""
    from app.rollouts import DecisionStore

    try:
        decisions, problems = DecisionStore(settings.state).read()
    except OSError as error:
        sentence = f"{settings.state} cannot be read: {error.strerror}"
        if needed:
            _fail(f"{sentence}, so that nobody can say what is rolled back")
        click.echo(f"Warning: {sentence}", err=True)
        return {}
    for problem in problems:
        click.echo(f"Warning: {problem}", err=True)
    return decisions


def _rollout_of(file: RolloutsFile, model: str) -> Rollout:
    if model not in file.configs:
        _no_rollout(file, model)
    return file.configs[model].rollout


def _variant_of(rollout: Rollout, variant: str) -> str:
    if variant not in rollout.variants:
        _no_variant(rollout.model, variant, rollout.variants)
    return variant


def _no_rollout(file: RolloutsFile, model: str) -> NoReturn:
    from app.errors import did_you_mean, quoted

    _fail(f"model {quoted(model)} has no rollout{did_you_mean(model, file.configs)}")


def _no_variant(model: str, name: str, known: Collection[str], more: str = "") -> NoReturn:
    from app.errors import did_you_mean, quoted

    there = did_you_mean(name, known) if known else ""
    _fail(f"{model} has no variant {quoted(name)}{there}{more}")


def _check_model(settings: Settings, file: RolloutsFile, model: str) -> None:
    """A new rollout is for a model that is there, where one can look."""
    from app.errors import did_you_mean, quoted

    folder = settings.models
    if not folder.is_dir():
        return
    known = {one.name for one in folder.iterdir() if one.is_dir()}
    if model not in known:
        known |= file.configs.keys()
        _fail(f"there is no model {quoted(model)} in {folder}{did_you_mean(model, known)}")


def _check_highest(settings: Settings, model: str, version: int) -> None:
    from app.repository import scan

    found = scan(settings.models, quiet=0).models.get(model)
    if found is None or found.config is None:
        _fail(f"{model} cannot be read in {settings.models}: nobody can say who would answer")
    highest = max(found.config.versions.wanted(found.versions), default=None)
    if highest != version:
        _fail(f"without a rollout version {highest} of {model} would answer, not {version}")


def _pairs(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{text!r} is not of the form VARIANT=NUMBER")
        pairs.append((name, value))
    return pairs


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = nan
    if not isfinite(weight):
        raise click.BadParameter(f"a weight is a number, not {text!r}")
    return weight


def _version(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"a version is a positive whole number, not {text!r}")
    return int(text)
