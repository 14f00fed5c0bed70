"""`cohort check`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import rich_click as click
from rich.console import Console
from rich.text import Text

from cohort.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from cohort.registry import Source
    from cohort.repository import ModelConfig, Problem, Snapshot, Trust
    from cohort.settings import Settings


CHECKED = (
    *("models", "model_name", "rollouts", "default_model", "api_keys"),
    *("jwks", "jwt_issuer", "jwt_audience"),
    *("tls_cert", "tls_key", "tls_client_ca", "trusted_keys", "model_code"),
    *options.OPENING,
)


@click.command(cls=options.settings_command(*CHECKED))
@options.models_folder
@click.option(
    "--open/--no-open",
    "opens",
    default=True,
    show_default=True,
    help="Load each version that would be served.",
)
@click.pass_context
def check(context: click.RichContext, /, opens: bool, **_: object) -> None:
    """Validate the models and configs in FOLDER without serving them; default: --models.

    Prints every problem with its file and key. Exits with 1 if there are problems.
    """
    settings = options.settings_from(context)
    from cohort.repository import VERSION_FILES, Layout, scan

    fetched = options.fetch_models(settings)
    # Do not wait for copies in progress to end.
    layout = Layout.of(settings.model_name, links=False, remote=bool(settings.remote))
    snapshot = scan(settings.models_folder, quiet=0, kinds=VERSION_FILES, layout=layout)
    problems = [
        *fetched,
        *snapshot.problems,
        *_missing(settings, snapshot),
        *_keys(settings, snapshot),
        *_jwks(settings),
        *_certificates(settings),
        *_trusted_keys(settings),
        *_webhook_secret(settings),
    ]
    notes: list[str] = []
    named = _named(settings, snapshot, problems, notes)
    notes += _held_back(snapshot, named)
    notes += _unread(snapshot)
    notes += _without_effect(snapshot)
    _check_pipelines(snapshot, problems, notes)
    from cohort.process.version_table import UNLIMITED

    console = Console(width=None if sys.stdout.isatty() else UNLIMITED)
    wanted = list(_wanted(snapshot, named))
    if not opens:
        notes += _published_alone(wanted)
    elif wanted:
        for part in _open_all(settings, wanted, problems, notes):
            console.print(part, soft_wrap=isinstance(part, Text))
    for line in [*notes, *map(str, problems)]:
        console.print(Text(line), soft_wrap=True)
    if problems:
        context.exit(options.PROBLEMS)
    versions = sum(len(model.versions) for model in snapshot.models.values())
    models = _count(len(snapshot.models), "model")
    console.print(f"No problems: {models}, {_count(versions, 'version')}.", highlight=False)


def _missing(settings: Settings, snapshot: Snapshot) -> Iterator[Problem]:
    from cohort.errors import did_you_mean, quoted
    from cohort.repository import EMPTY_FOLDER, Problem
    from cohort.settings import variable

    name = settings.default_model
    if name is not None and name not in snapshot.models:
        there = did_you_mean(name, snapshot.models)
        yield Problem("", variable("default_model"), f"model {quoted(name)} not found{there}")
    if not snapshot.models and not snapshot.problems:
        yield Problem(str(settings.models), "", EMPTY_FOLDER)


def _keys(settings: Settings, snapshot: Snapshot) -> Iterator[Problem]:
    """Yield problems of the API keys file, including models that do not exist."""
    from cohort.auth import ADMIN, load_keys
    from cohort.errors import did_you_mean, quoted
    from cohort.repository import ConfigProblems, Problem
    from cohort.settings import variable

    if settings.api_keys is None:
        return
    reserved = ADMIN if settings.admin_token is not None else ""
    try:
        keys = load_keys(settings.api_keys, reserved=reserved)
    except ConfigProblems as error:
        yield from error.problems
        return
    for place, key in enumerate(keys):
        if key.subject is not None and settings.jwks is None:
            sentence = f"{variable('jwks')} is not set: tokens cannot be verified"
            yield Problem(settings.api_keys.name, f"[{place}].subject", sentence)
        if key.certificate is not None and settings.tls_client_ca is None:
            sentence = f"{variable('tls_client_ca')} is not set: no certificates are requested"
            yield Problem(settings.api_keys.name, f"[{place}].certificate", sentence)
        for number, model in enumerate(key.models or ()):
            if model not in snapshot.models:
                there = did_you_mean(model, snapshot.models)
                path = f"[{place}].models[{number}]"
                sentence = f"model {quoted(model)} not found{there}"
                yield Problem(settings.api_keys.name, path, sentence)


def _jwks(settings: Settings) -> Iterator[Problem]:
    """Yield problems of the JWKS file."""
    if settings.jwks is None:
        return
    from cohort.auth.jwks import load_jwks

    yield from _problems_of(load_jwks, settings.jwks)


def _webhook_secret(settings: Settings) -> Iterator[Problem]:
    """Yield problems of the webhook secret file."""
    if settings.webhooks is None or settings.webhook_secret_file is None:
        return
    from cohort.notifications.webhook_secret import load_secret

    yield from _problems_of(load_secret, settings.webhook_secret_file)


def _problems_of(load: Callable[[Path], object], path: Path) -> Iterator[Problem]:
    from cohort.repository import ConfigProblems

    try:
        load(path)
    except ConfigProblems as error:
        yield from error.problems


def _certificates(settings: Settings) -> Iterator[Problem]:
    """Yield problems of the TLS files, including certificates that are expired or not yet valid."""
    from datetime import UTC, datetime

    from cohort.connections.tls import TlsFiles, load_tls
    from cohort.repository import ConfigProblems, Problem

    files = TlsFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    if files is None:
        return
    try:
        tls = load_tls(files)
    except ConfigProblems as error:
        yield from error.problems
        return
    if untimely := tls.untimely(datetime.now(UTC)):
        yield Problem(files.certificate.name, "", untimely)


def _named(
    settings: Settings, snapshot: Snapshot, problems: list[Problem], notes: list[str]
) -> Mapping[str, Set[int]]:
    """Return the versions that rollouts use, by model.

    Problems are added to `problems`, and warnings about callers to `notes`.
    """
    from cohort.errors import available, did_you_mean, quoted
    from cohort.repository import ConfigProblems, Problem
    from cohort.rollouts import find_misnamed, load_rollouts

    file = settings.rollouts.name
    problems += find_misnamed(settings.rollouts)
    try:
        configs = load_rollouts(settings.rollouts)
    except ConfigProblems as error:
        problems += error.problems
        return {}
    for name, config in configs.items():
        rollout, model = config.rollout, snapshot.models.get(name)
        if model is None:
            there = did_you_mean(name, snapshot.models)
            problems.append(Problem(file, name, f"model {quoted(name)} not found{there}"))
            continue
        places = {f"variants.{one.name}": one.version for one in rollout.variants.values()}
        if rollout.shadow is not None:
            places["shadow"] = rollout.shadow.version
        notes += rollout.misfits(model.signatures)
        if model.config is not None and model.config.state:
            notes += config.misfits_of_state()
        there = available(model.versions)
        problems += [
            Problem(file, f"{name}.{key}.version", f"version {number} not found{there}")
            for key, number in places.items()
            if number not in model.versions
        ]
    return {name: config.rollout.versions for name, config in configs.items()}


class _Wanted(NamedTuple):
    label: str
    source: Source
    config: ModelConfig


def _wanted(snapshot: Snapshot, named: Mapping[str, Set[int]]) -> Iterator[_Wanted]:
    from cohort.registry import Source, select_versions
    from cohort.repository import PIPELINE_FILE

    for name, sources in select_versions(snapshot, {}, pinned=named).items():
        model = snapshot.models[name]
        if model.config is not None:
            for number in sources:
                if number in model.versions and model.versions[number].path.name != PIPELINE_FILE:
                    found = model.versions[number]
                    source = Source(found.path, found.stamp, model.config)
                    yield _Wanted(f"{name}/{number}", source, model.config)


def _held_back(snapshot: Snapshot, named: Mapping[str, Set[int]]) -> Iterator[str]:
    """Yield a note for each version that answers only requests that name it."""
    from cohort.registry import hold_back

    for name, model in snapshot.models.items():
        for number, reason in hold_back(model.signatures).items():
            if number not in named.get(name, ()):
                yield f"{name}/{number}: answers only requests that name this version: {reason}"


def _unread(snapshot: Snapshot) -> Iterator[str]:
    """Yield a note for each config that is in a version's folder instead of its model's."""
    from cohort.repository import CONFIG_FILE

    for name, model in snapshot.models.items():
        for number, found in model.versions.items():
            inside, read = found.folder / CONFIG_FILE, model.folder / CONFIG_FILE
            if inside.exists() and not read.exists():
                yield f"{name}/{number}/{CONFIG_FILE} is not read; move it to {name}/{CONFIG_FILE}"


def _without_effect(snapshot: Snapshot) -> Iterator[str]:
    """Yield a note for each model with `generation` settings that is not a language model."""
    from cohort.generative.factory import is_language_model
    from cohort.repository import CONFIG_FILE, GenerationPolicy

    for name, model in snapshot.models.items():
        if model.config is None or model.config.generation == GenerationPolicy():
            continue
        if not any(is_language_model(found.path) for found in model.versions.values()):
            yield f"{name}/{CONFIG_FILE}: generation has no effect: {name} is not a language model"


def _check_pipelines(snapshot: Snapshot, problems: list[Problem], notes: list[str]) -> None:
    """Check each pipeline against the files of its models."""
    from cohort.errors import LoadFailed
    from cohort.pipelines import NotDeclared, check_pipeline, notes_on
    from cohort.repository import CONFIG_FILE, PIPELINE_FILE, Problem
    from cohort.response_cache import NO_PIPELINES

    uncached: dict[str, Problem] = {}
    for name, model in snapshot.models.items():
        for number, found in model.versions.items():
            if found.path.name != PIPELINE_FILE:
                continue
            inside = "" if found.folder == model.folder else f"{number}/"
            file = f"{name}/{inside}{PIPELINE_FILE}"
            if model.config is not None and model.config.cache is not None:
                uncached[name] = Problem(f"{name}/{CONFIG_FILE}", "cache", NO_PIPELINES)
            try:
                wiring = check_pipeline(found, snapshot, name)
            except NotDeclared as error:
                notes.append(f"{file}: cannot be checked: {error}")
            except (LoadFailed, OSError) as error:
                sentence = str(error).removeprefix(f"{name}/{PIPELINE_FILE}: ")
                problems.append(Problem(file, "", sentence))
            else:
                notes += [f"{file}: {note}" for note in notes_on(wiring.graph)]
    problems += uncached.values()


def _open_all(
    settings: Settings, wanted: Sequence[_Wanted], problems: list[Problem], notes: list[str]
) -> list[Table | Text]:
    """Open the versions in turn; return a table of those that load, and its footnotes.

    Failures are added to `problems`, other findings to `notes`.
    """
    from rich.progress import track

    from cohort.batching import plan_padding
    from cohort.cli.callers_view import as_callers_see
    from cohort.cli.language_models import in_words, open_and_describe
    from cohort.cli.row_notes import row_notes
    from cohort.errors import LoadFailed, quoted
    from cohort.generative.factory import is_language_model
    from cohort.process.version_table import Footnotes, spec_cell, version_table
    from cohort.processing import asked_by_config, with_trial
    from cohort.repository import Problem

    opener = options.opening(settings, _trust(settings))
    footnotes = Footnotes()
    table = version_table(
        *("model", "version", "inputs", "outputs", "provider"), whole=("version", "provider")
    )
    stderr = Console(stderr=True)
    for label, listed, config in track(
        wanted, "Opening", console=stderr, transient=True, disable=not stderr.is_terminal
    ):
        name, _, number = label.partition("/")
        if is_language_model(listed.path):
            try:
                signature, described, text = open_and_describe(listed, opener)
            except LoadFailed as error:
                problems.append(Problem(f"{label}/{listed.path.name}", "", str(error)))
            else:
                placement = described.placement
                cells = spec_cell(signature.inputs), spec_cell(signature.outputs)
                mark = footnotes.mark(placement.active, placement.footnote)
                table.add_row(name, number, *cells, mark)
                notes.append(f"{label}: {in_words(text)}")
            continue
        source = with_trial(listed, asked_by_config(listed))
        try:
            opened = opener.open(source)
        except LoadFailed as error:
            file, _, sentence = str(error).partition(": ")
            if not file.endswith("/config.yaml"):
                file, sentence = f"{label}/{source.path.name}", str(error)
            problems.append(Problem(file, "", sentence))
            continue
        session = opened.session
        try:
            signature, more = as_callers_see(
                source, session, runs_code=settings.model_code == "allow"
            )
        except LoadFailed as error:
            file, _, sentence = str(error).partition(": ")
            problems.append(Problem(file, "", sentence))
            opened.close()
            continue
        table.add_row(
            name,
            number,
            spec_cell(signature.inputs),
            spec_cell(signature.outputs),
            footnotes.mark(session.placement.active, session.placement.footnote),
        )
        notes += [
            f"{label}: output {quoted(one.name)} is omitted: {one.datatype} cannot be sent"
            for one in session.outputs
            if not one.transportable
        ]
        more += row_notes(session, config, opened.published.manifest)
        notes += (f"{label}: {note}" for note in more)
        padding = plan_padding(session.inputs, session.outputs, config.batching.pad)
        if padding.reason:
            notes.append(f"{label}: padding is off: {padding.reason}")
        opened.close()
    if opener.inspector is not None:
        opener.inspector.rest()
    if not table.row_count:
        return []
    default = opener.rules.default_chain.reason
    provider = [Text(f"Models run on the CPU: {default}.")] if default else []
    return [table, *footnotes.lines(), *provider]


def _published_alone(wanted: Sequence[_Wanted]) -> Iterator[str]:
    """Yield a note for each version that its manifest marks as not batchable."""
    from cohort.errors import LoadFailed
    from cohort.repository import read_manifest

    for label, source, _ in wanted:
        with suppress(LoadFailed):
            manifest = read_manifest(source.path.parent)
            rows = None if manifest is None else manifest.rows
            if rows is not None and not rows.independent:
                yield f"{label}: requests run one by one, as in its manifest: {rows.reason}"


def _trust(settings: Settings) -> Trust | None:
    """Return the keys that may sign versions; None if no signature is required."""
    from cohort.repository import ConfigProblems, Trust, load_trusted_keys

    if settings.trusted_keys is None:
        return None
    try:
        return Trust(load_trusted_keys(settings.trusted_keys))
    except ConfigProblems:  # reported by _trusted_keys
        return Trust()


def _trusted_keys(settings: Settings) -> Iterator[Problem]:
    """Yield problems of the trusted keys file."""
    if settings.trusted_keys is None:
        return
    from cohort.repository import load_trusted_keys

    yield from _problems_of(load_trusted_keys, settings.trusted_keys)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
