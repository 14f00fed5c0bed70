"""What is said at start-up, each thing once: on a terminal by a table, elsewhere by the log."""

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
    """Says what the first models are, where they are served, and what is wrong.

    pending: Whether a table is still to come: what it says is not to be logged until then.

    settings: With `log_format` json there is no table.
    default_chain: What models run on whose config names no providers.
    """

    def __init__(self, settings: Settings, default_chain: DefaultChain) -> None:
        self.pending = False
        self._settings = settings
        self._default_chain = default_chain
        self._address = ""  # until it is said
        self._ready = False
        self._order = Lock()  # the address comes below the table, whichever thread is first

    def begin(self, address: str) -> None:
        """Have it said where people find the server, in a table with the first models."""
        if self._settings.log_format == "console":
            self._address, self.pending = address, True

    def show(self, catalog: Catalog, snapshot: Snapshot) -> None:
        """Say what was loaded first, or could not be; on any thread, as a long table takes time."""
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

    def say_ready(self) -> None:
        """Say that the process is ready."""
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
        text = StringIO()  # nobody may read standard error: the event loop does not wait for it
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
