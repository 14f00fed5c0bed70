"""Coverage-guided fuzzing of what reads callers' bytes: `make fuzz`.

A target is a module with `check`, which takes any bytes and fails where they are misread, `SEEDS`,
which are bytes to begin with (those that failed once among them), and `TOKENS`, words worth
putting into them. Atheris mutates the seeds, and keeps what reaches code that nothing before
reached. https://github.com/google/atheris
"""

from __future__ import annotations

TARGETS = ("files", "heads", "json_bodies", "framing", "messages", "model_files")
