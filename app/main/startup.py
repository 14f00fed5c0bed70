"""The start-up table: the models, once the first ones are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.main import logs
from app.registry import Catalog, State, VersionEntry
from app.repository import Snapshot
from app.settings import Settings
from app.tensors import TensorSpec

COLOURS = {State.READY: "green", State.UNAVAILABLE: "red"}


def show_models(catalog: Catalog, snapshot: Snapshot, settings: Settings) -> None:
    """Print the start-up table and the address on standard error.

    Nothing is printed with `log_format` json: that log has a line per version.
    """
    if settings.log_format == "json":
        return
    terminal = Console(stderr=True)
    text = StringIO()  # nobody may read standard error: the event loop does not wait for it
    console = Console(
        file=text,
        highlight=False,
        force_terminal=terminal.is_terminal,
        width=terminal.width if terminal.is_terminal else 120,
    )
    notes = Notes()
    scheme = "http" if settings.tls_cert is None else "https"
    where = f"{scheme}://{settings.host}:{settings.port}"
    console.print(make_table(catalog, notes))
    for number, note in enumerate(notes, 1):
        console.print(f"  {number}  {escape(note)}", soft_wrap=True)
    for problem in snapshot.problems:
        console.print(f"[yellow]![/] {escape(str(problem))}", soft_wrap=True)
    if not catalog:
        no_model = f"no model in {settings.models}: put models/<name>/1/model.onnx"
        console.print(f"[yellow]![/] {no_model}")
    console.print(f"Serving on {where} · {where}/docs to try it", soft_wrap=True)
    logs.write(text.getvalue())


class Notes(dict[str, int]):
    """Footnotes: their numbers by text, so that a text for many rows is printed once."""

    def mark(self, text: str) -> str:
        """The number that refers to `text`, as markup; empty where `text` is."""
        return f" [dim]{self.setdefault(text, len(self) + 1)}[/]" if text else ""


def make_table(catalog: Catalog, notes: Notes) -> Table:
    """Make a row for each version: state, inputs, outputs, provider and batch size."""
    result = Table(title="Models", title_justify="left", header_style="bold")
    for column in ("model", "version", "state", "inputs", "outputs", "provider", "batch"):
        result.add_column(column, overflow="fold")
    for name, model in catalog.items():
        for entry in model.versions.values():
            result.add_row(name, str(entry.number), *_cells(entry, notes))
    return result


def _cells(entry: VersionEntry, notes: Notes) -> Sequence[str]:
    state = f"[{COLOURS.get(entry.state, 'yellow')}]{entry.state}[/]{notes.mark(entry.reason)}"
    engine = entry.engine
    if engine is None:
        return state, "", "", "", ""
    description = engine.describe()
    placement, policy = description.placement, description.policy
    wanted = f"instead of {placement.reason}" if placement.fell_back else ""
    unbatched = f"one by one: {entry.batching_off}" if entry.batching_off else ""
    return (
        state,
        _specs(engine.inputs),
        _specs(engine.outputs),
        placement.active + notes.mark(wanted),
        (f"up to {policy.max_batch_size}" if policy.batches else "off") + notes.mark(unbatched),
    )


def _specs(specs: Sequence[TensorSpec]) -> str:
    return escape("\n".join(f"{spec.name} {spec.datatype} {spec.shape_text}" for spec in specs))
