"""Checks of a block that do not run it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

from cohort.auth.keys import parse_keys
from cohort.repository import parse_yaml
from cohort.repository.model_config import parse_model_config
from cohort.rollouts.config import parse_rollouts
from tests.pages.blocks import CHECKED, SHOWN, Block

READERS: Mapping[str, Callable[[str, str], object]] = {
    "config.yaml": parse_model_config,
    "rollouts.yaml": parse_rollouts,
    "keys.yaml": parse_keys,
}
"""The server's own, by the name of the file that a block is."""


def complaints(block: Block) -> Iterator[str]:
    """Yield the faults of a block: its language, its syntax, or the server's complaint about it."""
    if block.language not in CHECKED | SHOWN and not block.language.startswith("{"):
        known = ", ".join(sorted(CHECKED | SHOWN))
        yield f"line {block.line}: names no language that is known here: {known}"
    if block.language == "yaml" and not (block.file or block.not_run):
        yield f"line {block.line}: which file is this? See tests/pages/__init__.py"
    if not (block.printed and "…" in block.text):
        try:
            _read(block)
        except Exception as error:  # noqa: BLE001 - whichever reader it was
            yield f"line {block.line}: {error}"


def _read(block: Block) -> None:
    match block.language:
        case "python":
            compile(block.text, f"line {block.line}", "exec", dont_inherit=True)
        case "json":
            json.loads(block.text)
        case "sh" | "bash":
            subprocess.run(
                ["bash", "-n"], input=block.text, text=True, check=True, capture_output=True
            )
        case "yaml":
            name = PurePath(block.file).name
            READERS.get(name, parse_yaml)(block.text, name)
