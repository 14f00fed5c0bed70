"""Run coverage-guided fuzzing of the code that reads callers' bytes: `make fuzz`."""

from __future__ import annotations

TARGETS = (
    "files",
    "heads",
    "json_bodies",
    "framing",
    "messages",
    "header_blocks",
    "frames",
    "model_files",
)
"""The modules of this package that are fuzzed.

Each has `check`, which accepts any bytes and fails if the code misreads them. `SEEDS` are inputs to
begin with, including all that failed before. `TOKENS` are bytes worth inserting. Atheris mutates
the seeds, and keeps each input that reaches new code. https://github.com/google/atheris
"""
