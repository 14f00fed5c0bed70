"""The commands of `cohort`, with their options and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rich_click as click

from cohort.cli import cli
from tools.release.facts import Facts, text_mark


def command_items() -> dict[str, Facts]:
    """Return each command, option and argument: `cohort serve`, `cohort serve --port`."""
    return dict(
        _command(cli, "cohort", click.Context(cli, info_name="cohort", **cli.context_settings))
    )


def _command(
    command: click.Command, name: str, context: click.Context
) -> Iterator[tuple[str, Facts]]:
    yield name, {}
    for parameter in command.get_params(context):
        yield from _parameter(parameter, name)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None:
                inner = click.Context(found, info_name=below, parent=context)
                yield from _command(found, f"{name} {below}", inner)


def _parameter(parameter: click.Parameter, command: str) -> Iterator[tuple[str, Facts]]:
    info = parameter.to_info_dict()
    facts: dict[str, Any] = {
        "kind": "flag" if info.get("is_flag") else info["type"]["name"],
        "required": info["required"],
        "values": info["nargs"],
    }
    if "choices" in info["type"]:
        facts["choices"] = sorted(info["type"]["choices"])
    for ours, theirs in (("minimum", "min"), ("maximum", "max")):
        if info["type"].get(theirs) is not None:
            facts[ours] = info["type"][theirs]
    if info.get("multiple"):
        facts["multiple"] = True
    if isinstance(info.get("default"), int | float | str) and info["default"] is not False:
        facts["default"] = info["default"]
    if mark := text_mark(info.get("help")):
        facts["text"] = mark
    names = [*info.get("opts", ()), *info.get("secondary_opts", ())]
    if info["param_type_name"] == "argument":
        names = [str(info["name"]).upper()]
    for name in names:
        yield f"{command} {name}", facts
