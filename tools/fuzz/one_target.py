"""Fuzz one target in this process: `python -m tools.fuzz.one_target NAME LIBFUZZER_OPTION…`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import atheris

from tools import ROOT

READERS = (
    "app.codec",
    "app.open_inference",
    "app.rest",
    "app.rpc",
    "app.model_file.protobuf",
    "app.tensors",
)
"""The modules that read callers' bytes. To instrument all their imports would take ten seconds."""


def main() -> None:
    """Instrument the code under test as it is imported, and run until libFuzzer stops."""
    program, name, *options = sys.argv
    with atheris.instrument_imports(include=["app"], exclude=list(others())):
        target = importlib.import_module(name)
    atheris.Setup([program, *options], target.check)
    atheris.Fuzz()


def others() -> Iterator[str]:
    """Yield the other modules of `app`; Atheris accepts no names of packages within a package."""
    for path in sorted((ROOT / "app").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not f"{name}.".startswith(tuple(f"{reader}." for reader in READERS)):
            yield name


if __name__ == "__main__":
    main()
