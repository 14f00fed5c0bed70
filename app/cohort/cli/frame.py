"""What the commands that prepare a model share: JSON, exit codes, and how they end early."""

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

if TYPE_CHECKING:
    from rich.progress import Progress

    from cohort.settings import Settings

Given = ParamSpec("Given")

STOPPED = 130
"""The exit code after Ctrl-C, as shells have it."""

_STOPPED = "stopped; nothing was written"

EXTRA = "prepare"
"""The extra with the packages that these commands need."""


@dataclass(frozen=True)
class Report:
    """What a command found.

    good: Whether the model passed; else the exit code is 1.
    findings: The same for machines: the keys of the JSON object, beside `command` and `good`.
    shown: For people, in order; a str is one line.
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
"""The commands that prepare models, and where `cohort_prepare.cli` has them."""


class CohortGroup(click.RichGroup):
    """All commands. With --json, stdout has one JSON object also for wrong use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in order."""
        return sorted({*super().list_commands(ctx), *PREPARING})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them; None where there is none of that name."""
        if cmd_name in PREPARING and cmd_name not in self.commands:
            module, _, name = PREPARING[cmd_name].partition(":")
            found: click.Command = getattr(import_module(f"cohort_prepare.cli.{module}"), name)
            self.add_command(found, cmd_name)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note whether there is --json, and say in JSON what is wrong with the group's options."""
        name = next((one for one in args if not one.startswith("-")), "")
        ctx.meta[_ASKED_FOR_JSON] = name if "--json" in args else None
        with _usage_in_json(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Say in JSON, too, what is wrong with the command or its options."""
        with _usage_in_json(ctx):
            return super().invoke(ctx)


_ASKED_FOR_JSON = "cohort.json"
"""The command's name, where it is to say in JSON how it ended."""


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
    """Make a command of a function that gives a Report; add --json to it.

    Ends with 0 for a good report, 1 for another or Rejected, 130 for Ctrl-C, and with 2 for Misused
    and where the machine lacks what is needed: room on a disk, memory, a package.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")
    @click.pass_context
    @functools.wraps(function)
    def command(
        context: click.Context, /, as_json: bool, *args: Given.args, **kwargs: Given.kwargs
    ) -> None:
        from cohort_prepare.failures import Misused, PrepareFailed

        name = context.info_name or ""
        findings: Mapping[str, object] = {}
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # of a locale that has no arrows, or closed
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
            error = "there is not enough memory for that; nothing was written"
            code = options.MISUSED
        except ImportError as failure:
            missing = failure.name or str(failure)
            error = f"needs the package {missing}: pip install 'cohort[{EXTRA}]'"
            code = options.MISUSED
            if stopped.is_set():  # in the middle of an import, which turned it into this
                error, code = _STOPPED, STOPPED
        else:
            try:
                _print_report(name, report, as_json=as_json)
                if sys.stdout:
                    sys.stdout.flush()
            except OSError as failure:
                _leave(f"the report cannot be printed, {failure.strerror}; all else was done")
            context.exit(options.OK if report.good else options.PROBLEMS)
        _print_error(name, error, findings, as_json=as_json)
        context.exit(code)

    return command


def _leave(error: str) -> NoReturn:
    """End at once, since nobody reads standard output, which Python would write to at its end."""
    with suppress(OSError):
        click.echo(f"Error: {error}", err=True)
    os._exit(options.MISUSED)


def escape_controls(text: str) -> str:
    """`text` without what moves a terminal's cursor: names in a model are anybody's."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()
        for one in text
    )


def report_of(command: click.Command, arguments: Sequence[str]) -> Report:
    """What a command finds, for another one that is made of several.

    Raises what its function raises, and Misused for arguments that it does not take.
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
    """A bar on stderr, gone afterwards; where that is no terminal, a line now and then."""
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
"""After which what is being done is said in a line: in the log of a CI job, it was quiet so far."""


@contextmanager
def _in_lines(shown: Progress) -> Iterator[None]:
    over = threading.Event()

    def say() -> None:
        last = ""
        while not over.wait(LINE_SECONDS):
            doing = ", ".join(task.description for task in shown.tasks)
            if doing != last:
                with suppress(OSError):
                    click.echo(f"{doing} …", err=True)
            last = doing

    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


AGAIN_SECONDS = 1.0
"""Within which a second signal is the same one: of Ctrl-C, a terminal tells all its processes."""


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Let SIGTERM, and a terminal that is closed, end the command as Ctrl-C does: it cleans up.

    Yields whether any of these came.
    """
    stopped, last = threading.Event(), -AGAIN_SECONDS

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal last
        before, last = last, monotonic()
        stopped.set()
        if last - before >= AGAIN_SECONDS:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield stopped
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for one, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup has it
            signal.signal(one, stop)
    try:
        yield stopped
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def settings_of_environment() -> Settings:
    """What a server would read. Raises Misused where that is invalid."""
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
