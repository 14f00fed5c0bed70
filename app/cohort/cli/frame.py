"""Common parts of the commands that prepare models: JSON, exit codes and signals."""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from io import TextIOWrapper
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, cast

import rich_click as click
from rich.console import Console, RenderableType

from cohort.cli import options
from cohort.cli.crashes import go_on_in_child
from cohort.extras import how_to_install

if TYPE_CHECKING:
    from rich.progress import Progress

    from cohort.settings import Settings

Given = ParamSpec("Given")

STOPPED = 130
"""Exit code after Ctrl-C, as in shells."""

_STOPPED = "stopped; nothing was written"

EXTRA = "prepare"
"""Extra of the package that installs the dependencies of these commands."""


@dataclass(frozen=True)
class Report:
    """Result of a command.

    good: True if the model passed; False makes the exit code 1.
    findings: Keys of the JSON object, in addition to `command` and `good`.
    shown: Output for people, in order; a str is one line.
    """

    good: bool
    findings: Mapping[str, object]
    shown: Sequence[RenderableType] = field(default_factory=tuple)


PREPARING = {
    "convert": "convert_command:convert",
    "inspect": "inspect_command:inspect_model",
    "optimize": "optimize_command:optimize_command",
    "prepare": "prepare_command:prepare",
    "publish": "publish_command:publish",
    "quantize": "quantize_command:quantize",
    "verify": "verify_command:verify",
}
"""Commands that prepare models, and their places in `cohort_prepare.cli`."""


class CohortGroup(click.RichGroup):
    """All commands. With --json, usage errors are also printed as a JSON object."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *PREPARING})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command `cmd_name`, or None if it does not exist."""
        if cmd_name in PREPARING and cmd_name not in self.commands:
            module, _, name = PREPARING[cmd_name].partition(":")
            found: click.Command = getattr(import_module(f"cohort_prepare.cli.{module}"), name)
            self.add_command(found, cmd_name)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note if --json is given, and print errors in the group's options as JSON."""
        name = next((one for one in args if not one.startswith("-")), "")
        ctx.meta[_ASKED_FOR_JSON] = name if "--json" in args else None
        with _usage_in_json(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; print usage errors as JSON if --json is given."""
        with _usage_in_json(ctx):
            return super().invoke(ctx)


_ASKED_FOR_JSON = "cohort.json"
"""Key of the command's name in `Context.meta`, if it must report errors as JSON."""


@contextmanager
def _usage_in_json(context: click.Context) -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        name = context.meta.get(_ASKED_FOR_JSON)
        if name is not None:
            _print_failure(name, error.format_message(), {})
        raise


def reporting(function: Callable[Given, Report]) -> Callable[..., None]:
    """Make a command from a function that returns a Report; add --json to it.

    Exit codes: 0 for a good report, 1 for a bad one or Rejected, and 2 for Misused. Ctrl-C exits
    with 130; a lack of disk space, memory or a package exits with 2.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.pass_context
    @functools.wraps(function)
    def command(
        context: click.Context, /, as_json: bool, *args: Given.args, **kwargs: Given.kwargs
    ) -> None:
        from cohort_prepare.failures import Misused, PrepareFailed

        name = context.info_name or ""
        findings: Mapping[str, object] = {}
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # the locale may lack characters such as arrows
                stream.reconfigure(errors="backslashreplace")
        try:
            go_on_in_child(lambda crash: _print_error(name, crash, {}, as_json=as_json))
            with _stopped_by_signals() as stopped:
                report = function(*args, **kwargs)
        except PrepareFailed as failure:
            error, findings = str(failure), failure.findings
            code = options.MISUSED if isinstance(failure, Misused) else options.PROBLEMS
        except KeyboardInterrupt:
            error, code = _STOPPED, STOPPED
        except OSError as failure:
            where = f": {failure.filename}" if failure.filename else ""
            error = f"{failure.strerror or failure}{where}; nothing was written"
            code = options.MISUSED
        except MemoryError:
            error = "out of memory; nothing was written"
            code = options.MISUSED
        except ImportError as failure:
            missing = failure.name or str(failure)
            error = f"needs the package {missing}: {how_to_install(EXTRA)}"
            code = options.MISUSED
            if stopped.is_set():  # Ctrl-C in an import may raise ImportError
                error, code = _STOPPED, STOPPED
        else:
            try:
                _print_report(name, report, as_json=as_json)
                if sys.stdout:
                    sys.stdout.flush()
            except OSError as failure:
                _leave(f"cannot print the report: {failure.strerror}; all other work is done")
            context.exit(options.OK if report.good else options.PROBLEMS)
        _print_error(name, error, findings, as_json=as_json)
        context.exit(code)

    return command


def _leave(error: str) -> NoReturn:
    """Exit immediately: stdout is closed, and Python would write to it at exit."""
    with suppress(OSError):
        click.echo(f"Error: {error}", err=True)
    os._exit(options.MISUSED)


def escape_controls(text: str) -> str:
    """Escape control characters of `text`. Names in a model may have terminal sequences."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()
        for one in text
    )


def report_of(command: click.Command, arguments: Sequence[str]) -> Report:
    """Return the Report of a command, for a command that combines several.

    Raises the errors of the command's function, and Misused for invalid arguments.
    """
    from cohort_prepare.failures import Misused

    try:
        context = command.make_context(command.name, list(arguments), click.get_current_context())
    except click.UsageError as error:
        raise Misused(error.format_message()) from error
    given = {name: value for name, value in context.params.items() if name != "as_json"}
    function = cast(Callable[..., Report], inspect.unwrap(cast(Any, command.callback)))
    with context:
        return function(**given)


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a progress bar on stderr; if that is not a terminal, print a line now and then."""
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    stderr = Console(stderr=True)
    columns = (
        *(SpinnerColumn(), TextColumn("{task.description}", markup=False)),
        *(BarColumn(), TimeElapsedColumn()),
    )
    hidden = not stderr.is_terminal
    with (
        Progress(*columns, console=stderr, transient=True, disable=hidden) as shown,
        _in_lines(shown) if hidden else nullcontext(),
    ):
        yield shown


LINE_SECONDS = 10.0
"""Interval of progress lines, so that the log of a CI job shows progress."""


@contextmanager
def _in_lines(shown: Progress) -> Iterator[None]:
    over = threading.Event()

    def show() -> None:
        last = ""
        while not over.wait(LINE_SECONDS):
            doing = ", ".join(task.description for task in shown.tasks)
            if doing != last:
                with suppress(OSError):
                    click.echo(f"{doing} …", err=True)
            last = doing

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


AGAIN_SECONDS = 1.0
"""A second signal within this time is a duplicate: a terminal sends Ctrl-C to all processes."""


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Make SIGTERM and SIGHUP stop the command as Ctrl-C does, with clean-up.

    Yields an event that is set by any of these signals.
    """
    stopped, last = threading.Event(), -AGAIN_SECONDS

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal last
        before, last = last, monotonic()
        stopped.set()
        if last - before >= AGAIN_SECONDS:
            raise KeyboardInterrupt

    # Signals arrive in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for one, handler in before.items():
        if handler is not signal.SIG_IGN:  # ignored by nohup, for example
            signal.signal(one, stop)
    try:
        yield stopped
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def settings_of_environment() -> Settings:
    """Return the settings from the environment. Raises Misused if they are invalid."""
    from cohort.settings import SettingsInvalid, read_settings, variable
    from cohort_prepare.failures import Misused

    try:
        return read_settings({})
    except SettingsInvalid as error:
        name, problem = next(iter(error.problems.items()))
        raise Misused(f"{variable(name)}: {problem}") from error


def _print_report(name: str, report: Report, *, as_json: bool) -> None:
    if as_json:
        _print_json({"command": name, "good": report.good, **report.findings})
    width = None if sys.stdout and sys.stdout.isatty() else options.WIDTH
    console = Console(stderr=as_json, width=width, highlight=False)
    for part in report.shown:
        plain = isinstance(part, str)
        shown = escape_controls(part) if isinstance(part, str) else part
        console.print(shown, soft_wrap=plain, markup=not plain)


def _print_error(name: str, error: str, findings: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        _print_failure(name, error, findings)
    click.echo(f"Error: {escape_controls(error)}", err=True)


def _print_failure(name: str, error: str, findings: Mapping[str, object]) -> None:
    _print_json({"command": name, "good": False, "error": error, **findings})


def _print_json(value: Mapping[str, Any]) -> None:
    click.echo(json.dumps(value, indent=2, default=str))
