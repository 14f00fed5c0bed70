"""Fuzz one target in this process: `python -m tools.fuzz.one_target NAME LIBFUZZER_OPTION…`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import atheris

from tools import ROOT

READERS = (
    "cohort.codec",
    "cohort.open_inference",
    "cohort.http",
    "cohort.http2",
    "cohort.rpc",
    "cohort.model_file.protobuf",
    "cohort.tensors",
)
"""The modules that read callers' bytes. To instrument all their imports would take ten seconds."""


def main() -> None:
    """Instrument the code under test as it is imported, and run until libFuzzer stops."""
    program, name, *options = sys.argv
    with atheris.instrument_imports(include=["cohort"], exclude=list(others())):
        target = importlib.import_module(name)
    atheris.Setup([program, *options], target.check)
    atheris.Fuzz()


def others() -> Iterator[str]:
    """Yield the other modules of `cohort`; Atheris takes no names of packages within a package."""
    for path in sorted((ROOT / "app" / "cohort").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "app").with_suffix("").parts).removesuffix(
            ".__init__"
        )
        if not f"{name}.".startswith(tuple(f"{reader}." for reader in READERS)):
            yield name


if __name__ == "__main__":
    main()
