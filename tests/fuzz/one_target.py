"""The process that fuzzes one target: `python -m tests.fuzz.one_target NAME LIBFUZZER_OPTION…`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import atheris

from tests.fuzz.fuzzing import ROOT

READERS = (
    "app.codec",
    "app.open_inference",
    "app.rest",
    "app.rpc",
    "app.session.protobuf",
    "app.tensors",
)
"""What reads a caller's bytes. To instrument all else that they import takes ten seconds."""


def main() -> None:
    """Instrument what is under test as it is imported, and go on until libFuzzer ends it."""
    program, name, *options = sys.argv
    with atheris.instrument_imports(include=["app"], exclude=list(others())):
        target = importlib.import_module(name)
    atheris.Setup([program, *options], target.check)
    atheris.Fuzz()


def others() -> Iterator[str]:
    """Modules of ours that read nothing; Atheris takes no names of packages within one."""
    for path in sorted((ROOT / "app").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not f"{name}.".startswith(tuple(f"{reader}." for reader in READERS)):
            yield name


if __name__ == "__main__":
    main()
