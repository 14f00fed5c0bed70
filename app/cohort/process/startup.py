"""Messages at start-up, each once: a table on a terminal, log lines elsewhere."""

from __future__ import annotations

from io import StringIO
from threading import Lock

import structlog
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohort.process import logs
from cohort.process.version_table import UNLIMITED, Footnotes, spec_cell, version_table
from cohort.registry import Catalog, State, VersionEntry
from cohort.repository import EMPTY_FOLDER, Snapshot
from cohort.session import DefaultChain
from cohort.settings import Settings

log = structlog.get_logger("cohort")

STYLES = {State.READY: "green", State.UNAVAILABLE: "red"}


class StartUp:
    """Reports the first models, the server's address, and problems.

    pending: True before the table is shown: its contents are not logged until then.

    settings: With `log_format` json there is no table.
    default_chain: The providers of models whose config names no providers.
    """

    def __init__(self, settings: Settings, default_chain: DefaultChain) -> None:
        self.pending = False
        self._settings = settings
        self._default_chain = default_chain
        self._address = ""  # empty once it was shown
        self._ready = False
        self._order = Lock()  # keeps the address below the table

    def begin(self, address: str) -> None:
        """Announce the server's address later, with a table of the first models."""
        if self._settings.log_format == "console":
            self._address, self.pending = address, True

    def show(self, catalog: Catalog, snapshot: Snapshot) -> None:
        """Report the first models and problems; on any thread, as a long table takes time."""
        if not self.pending:
            if self._default_chain.reason:
                log.info("models run on the CPU", reason=self._default_chain.reason)
            if self._is_empty(catalog, snapshot):
                log.warning("models folder problem", problem=self._nothing_found)
            log.info("first models loaded", models=len(catalog))
            return
        notes = Footnotes()
        table = make_table(catalog, notes)
        problems = [str(one) for one in snapshot.problems if str(one) not in notes]
        if self._is_empty(catalog, snapshot):
            problems = [self._nothing_found]
        lines = [*notes.lines(), *(Text(f"! {problem}", "yellow") for problem in problems)]
        if self._default_chain.reason:
            lines.append(Text(f"Models run on the CPU: {self._default_chain.reason}."))
        text = self._render(*([table] if catalog else []), *lines)
        with self._order:
            self.pending = False
            logs.write(text + (self._render(self._where()) if self._ready else ""))

    def report_ready(self) -> None:
        """Report that the process is ready."""
        with self._order:
            self._ready = True
            if self.pending:
                return
            if self._address:
                logs.write(self._render(self._where()))
                return
        log.info("ready")

    def _is_empty(self, catalog: Catalog, snapshot: Snapshot) -> bool:
        return not (catalog or snapshot.problems or self._settings.allow_empty)

    @property
    def _nothing_found(self) -> str:
        return f"{self._settings.models}: {EMPTY_FOLDER}"

    def _where(self) -> Text:
        address, self._address = self._address, ""
        return Text(f"Serving on {address} · {address}/docs to try it")

    def _render(self, *parts: Table | Text) -> str:
        terminal = Console(stderr=True)
        text = StringIO()  # the event loop must not wait for standard error
        console = Console(
            file=text,
            highlight=False,
            force_terminal=terminal.is_terminal,
            width=terminal.width if terminal.is_terminal else UNLIMITED,
        )
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
        return text.getvalue()


def make_table(catalog: Catalog, notes: Footnotes) -> Table:
    """Make a row for each version: state, inputs, provider and batch size."""
    table = version_table(
        *("model", "version", "state", "inputs", "provider", "batch"),
        whole=("version", "state", "provider", "batch"),
    )
    for name, model in catalog.items():
        for entry in model.versions.values():
            table.add_row(name, str(entry.number), *_cells(entry, notes))
    return table


def _cells(entry: VersionEntry, notes: Footnotes) -> list[Text]:
    state = notes.mark(entry.state, entry.reason, style=STYLES.get(entry.state, "yellow"))
    engine = entry.engine
    if engine is None:
        return [state]
    description = engine.describe()
    placement, batching = description.placement, description.batching
    shared = "off"
    if batching is not None and batching.policy.batches:
        shared = f"up to {batching.policy.max_batch_size}"
    unbatched = f"one by one: {entry.batching_off}" if entry.batching_off else ""
    return [
        state,
        spec_cell(engine.inputs),
        notes.mark(placement.active, placement.footnote),
        notes.mark(shared, unbatched),
    ]
