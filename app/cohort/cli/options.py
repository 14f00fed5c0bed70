"""Settings as command-line options, and helpers shared by commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import rich_click as click
from click.core import ParameterSource

if TYPE_CHECKING:
    from pathlib import Path

    from cohort.onnx_engine import VersionOpener
    from cohort.remote import ModelUse
    from cohort.repository import Problem, Trust
    from cohort.settings import Settings

OK, PROBLEMS, MISUSED = 0, 1, 2
"""Exit codes; 2 is click's for usage errors."""

WIDTH = 140
"""Width of tables written to a file or pipe."""


MAX_LOOKS = 5
"""Attempts to fetch from a remote repository, one for each version that may fail."""


OPENING = (
    "cache",
    "providers",
    "custom_ops",
    "max_model_mb",
    "max_nodes",
    "inspection_seconds",
    "inspection_mb",
)
"""Settings that affect how a model is opened."""


def settings_command(*only: str) -> type[click.RichCommand]:
    """Return a command class with an option for every setting, or for the settings in `only`."""

    class SettingsCommand(click.RichCommand):
        def get_params(self, ctx: click.Context) -> list[click.Parameter]:
            if not self._made:
                self.params = [*_options(*only), *self.params]
                self._made = True
            return super().get_params(ctx)

        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            given = [
                one.replace(KSERVE_NAME, OWN_NAME, 1)
                if one == KSERVE_NAME or one.startswith(f"{KSERVE_NAME}=")
                else one
                for one in args
            ]
            return super().parse_args(ctx, given)

        _made = False

    return SettingsCommand


models_folder = click.argument("folder", required=False)
"""FOLDER, a shorter form of --models."""


def _options(*only: str) -> Iterator[click.Option]:
    from cohort.settings import Settings, default_in_words, variable

    for name, field in Settings.model_fields.items():
        if not only or name in only:
            words = default_in_words(name)
            yield click.Option(
                ["--" + name.replace("_", "-")],
                help=field.description,
                metavar=METAVARS.get(name) or METAVARS.get(name.rpartition("_")[2], "TEXT"),
                # For --help only: Settings reads the variable, and gets only command-line values.
                envvar=variable(name),
                show_envvar=True,
                default=None if words else str(field.default),
                show_default=words or True,
            )


KSERVE_NAME, OWN_NAME = "--model_name", "--model-name"
"""The option for the model's name as KServe's runtimes spell it, and as this command does."""

METAVARS: Mapping[str, str] = {
    "models": "FOLDER",
    "rollouts": "FILE",
    "state": "FOLDER",
    "api_keys": "FILE",
    "jwks": "FILE",
    "trusted_keys": "PATH",
    "jwt_issuer": "NAME",
    "jwt_audience": "NAME",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "tls_client_ca": "FILE",
    "cache": "FOLDER",
    "custom_ops": "FOLDERS",
    "providers": "NAMES",
    "host": "ADDRESS",
    "port": "PORT",
    "workers": "COUNT|auto",
    "model": "NAME",
    "seconds": "SECONDS",
    "mb": "MIB",
    "max_concurrency": "COUNT",
    "max_connections": "COUNT",
    "max_connections_per_address": "COUNT",
    "max_loaded_models": "COUNT",
    "max_nodes": "COUNT",
    "log_format": "json|console",
    "model_code": "deny|allow",
    "shared_memory": "/PREFIX",
    "log_level": "debug|info|warning|error",
    "access_log": "true|false",
    "allow_empty": "true|false",
    "webhook_secret_file": "FILE",
}


def settings_from(context: click.Context, *, quiet: bool = False) -> Settings:
    """Read the settings from the environment and the command's options; exit if one is invalid.

    quiet: True to skip warnings about unknown variables.
    """
    from cohort.cli.runtime_check import runtime_problem
    from cohort.settings import (
        SettingsInvalid,
        read_settings,
        unknown_variables,
        variable,
    )

    if problem := runtime_problem():
        fail(problem)
    for warning in () if quiet else unknown_variables(os.environ):
        click.echo(f"Warning: {warning}", err=True)
    given = given_settings(context)
    if folder := context.params.get("folder"):
        if "models" in given:
            raise click.UsageError("FOLDER and --models are the same setting: use one", context)
        given["models"] = folder
    try:
        return read_settings(given)
    except SettingsInvalid as error:
        for name, problem in error.problems.items():
            option = f"--{name.replace('_', '-')} ({variable(name)})"
            click.echo(f"Error: {option if name in given else variable(name)}: {problem}", err=True)
        sys.exit(MISUSED)


def given_settings(context: click.Context) -> dict[str, Any]:
    """Return the settings that the command line sets."""
    from cohort.settings import Settings

    return {
        name: value
        for name, value in context.params.items()
        if name in Settings.model_fields
        and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def fail(sentence: str, code: int = PROBLEMS) -> NoReturn:
    """Exit with an error message."""
    click.echo(f"Error: {sentence}", err=True)
    raise SystemExit(code)


def fetch_models(settings: Settings) -> list[Problem]:
    """Fetch the models of a remote repository, and return problems; do nothing for a folder.

    Models fetched earlier are kept if the repository cannot be reached.
    """
    if not settings.remote:
        return []
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from cohort.remote import Mirror
    from cohort.repository import Problem
    from cohort.session import available_memory
    from cohort.system.remote_address import mirror_folder

    largest = settings.max_model_mb
    mirror = Mirror(
        settings.remote,
        mirror_folder(settings.cache, settings.remote),
        max_bytes=available_memory() if largest is None else largest << 20,
        quiet=0,
        model_name=settings.model_name,
    )
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(f"Reading {settings.remote}")
        try:
            for _ in range(MAX_LOOKS):
                before, uses = mirror.status.problems, _uses(mirror.models)
                mirror.sync(uses)
                while not mirror.wait(0.2):
                    text = f"Fetching {', '.join(mirror.fetching)}: "
                    done = f"{mirror.status.fetched_bytes >> 20:,} MiB"
                    progress.update(task, description=text + done)
                same = mirror.status.problems == before and _uses(mirror.models) == uses
                if mirror.status.failure or same:
                    break  # else other versions may replace those that failed
        finally:
            mirror.close()
    status = mirror.status
    failure = [Problem("", "", status.failure)] if status.failure else []
    return [*failure, *status.problems]


def _uses(models: Path) -> Mapping[str, ModelUse]:
    """Return the versions to fetch: all in the mirror's folder, and those that pipelines use."""
    from cohort.pipelines import members_named
    from cohort.remote import ModelUse
    from cohort.repository import VERSION_FILES, scan

    snapshot = scan(models, quiet=0, kinds=VERSION_FILES)
    named, found = members_named(snapshot), snapshot.models
    return {
        name: ModelUse(
            frozenset(named.get(name, ())),
            loaded=found[name].versions.keys() if name in found else frozenset(),
        )
        for name in named.keys() | found.keys()
    }


def opening(settings: Settings, trust: Trust | None = None) -> VersionOpener:
    """Return an opener that opens versions as a server with these settings does.

    trust: Keys that may sign versions; None to accept unsigned versions.
    """
    from cohort.inspection import InspectionLimits, Inspector
    from cohort.onnx_engine import VersionOpener
    from cohort.session import model_rules

    rules = model_rules(
        settings.max_model_mb, settings.max_nodes, settings.custom_ops, settings.providers
    )
    limits = InspectionLimits(settings.inspection_seconds, settings.inspection_mb)
    inspector = Inspector(limits, settings.cache)
    return VersionOpener(settings.cache, rules, inspector, trust, private=False)
