"""`cohort profile`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cohort.cli import options

if TYPE_CHECKING:
    from cohort.batching import BatchPolicy
    from cohort.profiling import ConcurrentRuns, Profile, ProfileResult, Trial
    from cohort.registry import Source
    from cohort.repository import ModelConfig
    from cohort.row_independence import RowVerdict
    from cohort.session import Opener, Session
    from cohort.settings import Settings

BUDGET = 3.0
"""Total seconds for measuring concurrent runs."""

BAR_WIDTH = 30


@click.command(cls=options.settings_command("models", *options.OPENING))
@click.argument("model")
@click.option(
    "--version", "number", type=int, metavar="NUMBER", help="Version; default: the highest."
)
@click.option("--fresh", is_flag=True, help="Measure again even if a cached profile fits.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def profile(
    context: click.RichContext,
    /,
    model: str,
    number: int | None,
    fresh: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Measure MODEL's run times here, and show the batching that a server would choose.

    A server measures and caches the same profile when it loads a model. Only this command measures
    concurrent runs. Use a machine that is otherwise idle.
    """
    settings = options.settings_from(context)
    from cohort.errors import CohortError

    for problem in options.fetch_models(settings):
        click.echo(f"Warning: {problem}", err=True)
    try:
        if _describe_text(settings, model, number, as_json=as_json):
            return
        measured = _measure(settings, model, number, fresh=fresh)
    except (CohortError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(options.PROBLEMS)
    described = _describe(measured)
    if as_json:
        click.echo(json.dumps(described, indent=2))
    else:
        _show(measured, described)


@dataclass(frozen=True)
class _Measured:
    model: str
    number: int
    found: ProfileResult
    policy: BatchPolicy
    threads: int
    provider: str
    device: str
    unpredictable: str
    rows: RowVerdict
    differences: Sequence[str]

    @property
    def chosen(self) -> BatchPolicy:
        """The batching policy with the batch size that was chosen."""
        return replace(self.policy, max_batch_size=self.found.profile.max_batch_size)


def _describe_text(settings: Settings, model: str, number: int | None, *, as_json: bool) -> bool:
    """Describe a language model, which needs no profile; return False for another model."""
    from cohort.cli.language_models import in_words, open_and_describe
    from cohort.generative.factory import is_language_model
    from cohort.operating import describe_text

    number, source, _ = _find(settings.models_folder, model, number)
    if not is_language_model(source.path):
        return False
    opener = options.opening(settings)
    try:
        *_, text = open_and_describe(source, opener)
    finally:
        if opener.inspector is not None:
            opener.inspector.rest()
    if as_json:
        about = {"model": model, "version": str(number), "language_model": describe_text(text)}
        click.echo(json.dumps(about, indent=2))
    else:
        click.echo(
            f"{model}/{number}: {in_words(text)}.\nIts steps are not profiled; measure a server "
            f"with cohort bench --chat --model {model}."
        )
    return True


def _measure(settings: Settings, model: str, number: int | None, *, fresh: bool) -> _Measured:
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from cohort.onnx_engine import examples_to_try
    from cohort.processing import asked_by_config, open_around, with_trial
    from cohort.profiling import (
        RowFindings,
        Store,
        find_trial,
        keep,
        key_for,
        profile_model,
        with_findings,
    )
    from cohort.session import Signature

    version_opener = options.opening(settings)
    number, source, config = _find(settings.models_folder, model, number)
    stderr = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    hidden = not stderr.is_terminal
    with Progress(*columns, console=stderr, transient=True, disable=hidden) as progress:
        task = progress.add_task("Opening")
        own = config.session.intra_op_threads
        source = with_trial(source, asked_by_config(source))
        opened = version_opener.open(source)
        opener, session = opened.opener, opened.session
        try:
            signature = Signature(session.inputs, session.outputs, session.optional_inputs)
            around = open_around(source, signature, session.metadata.properties)
            if around is not None:
                around.close()  # it was only opened to check its config
            progress.update(task, description="Measuring runs")
            tried = examples_to_try(session, opened.given)
            trial = find_trial(
                session.run, session.inputs, session.rows.axes, session.tables, tried
            )
            key = key_for(opener, session, config.batching, trial)
            store = Store(settings.cache)
            differences = store.differences(key)
            found = profile_model(
                opened.opener, session, trial, config.batching, store, fresh=fresh
            )
            if found.profile.seconds and not found.concurrency:
                progress.update(task, description="Measuring concurrent runs")
                runs = _measure_concurrency(opener, session, trial, found)
                found = replace(found, concurrency=runs)
                keep(store, key, found)
            findings = RowFindings(settings.cache)
            found = with_findings(found, session, config.batching, findings, opener.digest)
        finally:
            opened.close()
            if version_opener.inspector is not None:
                version_opener.inspector.rest()
    return _Measured(
        model,
        number,
        found,
        config.batching,
        1 if own is None else own,
        session.placement.active,
        session.device,
        session.unpredictable,
        session.rows,
        differences,
    )


def _find(folder: Path, model: str, number: int | None) -> tuple[int, Source, ModelConfig]:
    """Return the version to profile. Raises a CohortError that lists the available ones."""
    from cohort.errors import LoadFailed, available, did_you_mean, quoted
    from cohort.registry import Source
    from cohort.repository import GENAI_FILE, MODEL_FILE, scan

    models = scan(folder, quiet=0, kinds=(GENAI_FILE, MODEL_FILE)).models
    if model not in models:
        there = did_you_mean(model, models)
        raise LoadFailed(f"model {quoted(model)} not found in {folder}{there}")
    found = models[model]
    if found.config is None:
        raise LoadFailed(f"the config of {quoted(model)} has problems; see cohort check")
    wanted = max(found.versions, default=0) if number is None else number
    if wanted not in found.versions:
        there = available(found.versions)
        raise LoadFailed(f"version {wanted} of model {quoted(model)} not found{there}")
    version = found.versions[wanted]
    return wanted, Source(version.path, version.stamp, found.config), found.config


def _measure_concurrency(
    opener: Opener, session: Session, trial: Trial, found: ProfileResult
) -> tuple[ConcurrentRuns, ...]:
    """Measure concurrent runs of one row and of the chosen batch size on 1, 2, … cores.

    Runs with several threads are measured as well, unless the config sets the number of threads.
    """
    from cohort.profiling import measure_concurrency, sizes_up_to
    from cohort.session import cores

    own = opener.options.intra_op_threads
    feeds = {rows: trial.feeds(rows) for rows in sorted({1, found.profile.max_batch_size})}
    runs, more = {1 if own is None else own: session.run}, None
    if session.device == "cpu" and own is None and cores() > 1:
        several = max(2, found.threads.tried)
        more = opener.open(several)
        runs[several] = more.run
    try:
        return measure_concurrency(runs, feeds, list(sizes_up_to(cores())), budget=BUDGET)
    finally:
        if more is not None:
            more.close()


def _describe(measured: _Measured) -> dict[str, Any]:
    from cohort.operating import describe_exactness, describe_profile, describe_rows

    found = measured.found
    return {
        "model": measured.model,
        "version": str(measured.number),
        "provider": measured.provider,
        "threads": measured.threads,
        "batching_off": found.profile.reason,
        "padding_off": found.padding.reason,
        "rows": describe_rows(measured.rows),
        **describe_exactness(found, measured.chosen, measured.rows),
        "padding_wanted": bool(measured.policy.pad),
        "profile": describe_profile(found, measured.device, measured.unpredictable),
        "differs_from_kept": [] if found.kept else list(measured.differences),
    }


def _show(measured: _Measured, described: Mapping[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else options.WIDTH, highlight=False)
    profile, found = described["profile"], measured.found
    inline = profile["inline_up_to_rows"]
    table = Table("rows", "ms per run", "rows/s", "", "runs", "", header_style="bold")
    fastest = max((rows / taken for rows, taken in found.profile.seconds.items()), default=0)
    for rows, taken in found.profile.seconds.items():
        bar = ProgressBar(total=fastest, completed=rows / taken, width=BAR_WIDTH)
        chosen = "chosen" if rows == found.profile.max_batch_size else ""
        mode = "inline" if rows <= inline else "threaded"
        table.add_row(str(rows), f"{taken * 1000:.3f}", f"{rows / taken:,.0f}", bar, mode, chosen)
    count = measured.threads or "chosen by ONNX Runtime"
    console.print(
        Text(f"{measured.model} {measured.number} on {measured.provider}, threads per run: {count}")
    )
    console.print(table)
    if found.concurrency:
        console.print(_concurrency_table(found.concurrency))
    for line in _verdicts(measured):
        console.print(Text(line), soft_wrap=True)


def _concurrency_table(found: Sequence[ConcurrentRuns]) -> Table:
    from cohort.profiling import best_concurrency

    top = best_concurrency(found)
    table = Table("threads per run", "rows", "concurrent runs", "ms per run", "rows/s", "")
    table.header_style = "bold"
    for one in found:
        table.add_row(
            str(one.threads),
            str(one.rows),
            str(one.at_once),
            f"{one.seconds * 1000:.3f}",
            f"{one.rows_per_second:,.0f}",
            "best" if one is top else "",
        )
    return table


def _row_lines(rows: RowVerdict, off: str) -> list[str]:
    """Describe the graph's row analysis, without the reason `off`, and how to enable batching."""
    from cohort.profiling import row_advice, row_places

    proven = "" if (sentence := str(rows)) in off else f", {sentence}"
    lines = [f"Rows, from the graph: {rows.kind}{proven}"]
    lines += [f"  {place}" for place in row_places(rows)]
    if off and (advice := row_advice(rows)):
        lines.append(f"  to batch: {advice}")
    return lines


def _filled(profile: Profile) -> list[str]:
    """Describe to how many rows smaller runs are filled, why, and the cost for a single row."""
    filled = profile.filled_rows
    if not filled:
        return []
    if filled == profile.least_rows:
        ratio = profile.seconds_for(filled) / profile.seconds[1]
        return [
            f"A single row: filled up to {filled} rows, since its bits would differ otherwise "
            f"(batching.exact); it takes {ratio:.2f} times as long"
        ]
    longer = profile.change_seconds * 1000
    return [
        f"Smaller runs: filled up to {filled} rows, since a change of the number of rows costs "
        f"{longer:.3g} ms"
    ]


def _verdicts(measured: _Measured) -> list[str]:
    found = measured.found
    off = found.profile.reason
    lines = [f"Batching: off, {off}" if off else f"Batching: up to {found.profile.max_batch_size}"]
    lines += _row_lines(measured.rows, off)
    lines += _filled(found.profile)
    if why := found.why_not_exact(measured.chosen, measured.rows):
        lines.append(f"Same bits as unbatched: not guaranteed, {why}")
    else:
        alone = "" if measured.chosen.batches else ", since requests are not batched"
        lines.append(f"Same bits as unbatched: yes{alone}")
    if measured.policy.pad:
        off = found.padding.reason
        lines.append(f"Padding: off, {off}" if off else "Padding: on, outputs do not change")
    if (threads := found.threads).tried > 1:
        lines.append(
            f"Threads of an exclusive run: {threads.chosen}; {threads.tried} threads are "
            f"{threads.gain:.2f} times as fast as one"
        )
    if measured.unpredictable:
        lines.append(f"Runs on a thread: {measured.unpredictable}")
    if found.kept:
        lines.append(f"Cached profile, measured {found.measured}; --fresh measures again")
    elif measured.differences:
        lines.append(
            f"Measured now: the cached profile differs in {', '.join(measured.differences)}"
        )
    else:
        lines.append("Measured now")
    return lines
