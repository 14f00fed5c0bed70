"""The process that fuzzes one target: `python -m tests.fuzz.one_target NAME LIBFUZZER_OPTION…`."""

from __future__ import annotations

import importlib
import sys

import atheris


def main() -> None:
    """Instrument what is under test as it is imported, and go on until libFuzzer ends it."""
    program, name, *options = sys.argv
    with atheris.instrument_imports(include=["app"]):
        target = importlib.import_module(name)
    atheris.Setup([program, *options], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
