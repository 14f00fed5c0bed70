"""The report of `cohort convert` for a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import rich_click as click
from rich.table import Table

from cohort.cli.frame import Report

if TYPE_CHECKING:
    from cohort_prepare.language_models.converting import ConvertedLanguageModel
    from cohort_prepare.language_models.measuring import Measured


def refuse_options(given: Mapping[str, object]) -> None:
    """Raise UsageError if an option of `given`, by name, is set: it is for other models."""
    for name, value in given.items():
        if value:
            raise click.UsageError(f"{name} is not for language models; --from huggingface has it")


def language_model_report(made: ConvertedLanguageModel) -> Report:
    """Return the findings, and a table of the source and the result."""
    template = "kept" if made.has_template else "none"
    lines = [
        f"Wrote {made.folder}: {made.what}, opset {made.opset}, {made.parameters / 1e6:,.1f} "
        "million parameters.",
        f"files    {', '.join(made.files)}",
        f"context  {made.context_length:,} tokens; chat template: {template}",
    ]
    notes = [f"Note: {note}" for note in made.notes]
    if made.measured is None:
        return Report(True, _findings(made), [*lines, "Not compared with its source.", *notes])
    return Report(True, _findings(made), [*lines, _table(made, made.measured), *notes])


def _table(made: ConvertedLanguageModel, found: Measured) -> Table:
    table = Table("", "perplexity", "same next token", "greedy answer", "MB", "tokens/s")
    for name, place, size in (("PyTorch", 0, made.source_size), (made.what, 1, made.size)):
        equal, of = found.greedy
        table.add_row(
            name,
            f"{found.perplexities[place]:,.4g}",
            f"{found.agreement:.1%} of {found.tokens}" if place else "",
            f"{equal} of {of} equal" if place else "",
            f"{size / 1e6:,.1f}",
            f"{found.speeds[place]:,.0f}",
        )
    return table


def _findings(made: ConvertedLanguageModel) -> dict[str, object]:
    found = made.measured
    measured = found and {
        "perplexity": dict(zip(("source", "converted"), found.perplexities, strict=True)),
        "agreement": found.agreement,
        "greedy": {"equal": found.greedy[0], "of": found.greedy[1]},
        "tokens_per_second": dict(zip(("source", "converted"), found.speeds, strict=True)),
    }
    return {
        "out": str(made.folder),
        "framework": "generative",
        "what": made.what,
        "opset": made.opset,
        "parameters": made.parameters,
        "context_length": made.context_length,
        "chat_template": made.has_template,
        "files": list(made.files),
        "versions": made.versions,
        "notes": list(made.notes),
        "measured": measured,
        "rows": found.tokens if found else 0,
        "difference": found and {"max_absolute": found.max_absolute, "max_relative": 0.0},
        "bytes": made.size,
        "source_bytes": made.source_size,
        "sha256": made.sha256,
    }
