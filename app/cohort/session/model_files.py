"""The files of one model: where they are, whether they are allowed, and what is in them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from errno import ENOENT
from pathlib import Path

import structlog

from cohort.errors import LoadFailed
from cohort.model_file.graphs import ModelGraphs
from cohort.model_file.lookups import table_sizes, uses_any
from cohort.model_file.model import NO_GRAPHS, ModelFile, read_model
from cohort.row_independence import NOT_READ, RowVerdict, prove_for_requests, prove_rows
from cohort.session.class_maps import Classes, find_class_maps
from cohort.session.digests import Digests, Stamp, stamp
from cohort.session.divisions import Divisions, find_divisions
from cohort.session.file_decoders import find_decoders
from cohort.session.file_kinds import recognize
from cohort.session.private_copy import PrivateCopy, copy_privately, read_content
from cohort.session.rules import (
    ModelRules,
    check_external,
    check_location,
    check_model_file,
    leads_out,
    missing_external,
)
from cohort.session.sequence_parts import Parts, find_parts, graph_with_parts, names_of_ends
from cohort.system.processor import available_memory
from cohort.tensors import Arrays

log = structlog.get_logger("cohort.session")

COPIES_IN_MEMORY = 2
"""How often external data is in memory while a session that does not map it is opened."""

ENDING_ON_EMPTY = frozenset({"LSTM", "GRU", "DynamicQuantizeLSTM"})
"""Operators for which ONNX Runtime 1.31 ends the process where they get no rows."""

CHANGED = "its files changed while it was loaded"


class ModelFiles:
    """The files of one model, each read once.

    path: the model; once its external data is copied, the private copy.
    rules: what is allowed of it.
    custom_op_libraries: the names of its libraries of custom operators.

    origin: the model as its operator has it.
    closed: whether what `secure` kept was given up; False where it kept nothing.
    copy: the private copy; None where there is none.
    in_memory: external data that sessions take instead of the files', by path in their folder.
    digests: the digests of files that were read.
    peak: the bytes that opening and first running it took elsewhere; 0: not known.
    tables: the entries of the tables that inputs are places in, by the input's name; empty before
        the model was read.
    needs_entries: whether a run of an empty input would end the process; False before the model was
        read.
    class_maps: the classes of outputs that the file makes dictionaries of, and that are opened as
        columns; empty before the model was read.
    parts: the tensors of outputs that are sequences, which are opened as outputs of their own;
        empty before the model was read.
    decoders: its operators that decode files, with their domains; none before the model was read.
    divisions: its divisions of whole numbers that could end the process; none before the model was
        read.
    """

    def __init__(
        self, path: Path, rules: ModelRules, custom_op_libraries: Sequence[str] = ()
    ) -> None:
        self.path, self.rules, self.digests = path, rules, Digests()
        self.origin = path
        self.in_memory: Mapping[str, bytes] = {}
        self.peak = 0
        self._graphs: ModelGraphs | None = None
        self._rows: RowVerdict | None = None
        self.tables: Mapping[str, int] = {}
        self.needs_entries = False
        self.class_maps: Mapping[str, Classes] = {}
        self.parts: Parts = {}
        self.decoders: Sequence[str] = ()
        self.divisions = Divisions()
        self.closed = False
        self.copy: PrivateCopy | None = None
        self._library_names = custom_op_libraries
        self._model: ModelFile | None = None
        self._stamps: dict[Path, Stamp] = {}

    def read(self) -> ModelFile:
        """What is in the model's own file. Raises LoadFailed where that may not be opened."""
        if self._model is None:
            before = stamp(self.path)
            model = self._read()
            beside = [self.path.parent / location for location in sorted(model.external)]
            beside += self.libraries()
            self._stamps = {self.path: before, **{path: stamp(path) for path in beside}}
            self._model = model
        return self._model

    @property
    def rows(self) -> RowVerdict:
        """Whether rows of a run influence each other: proven now, unless that was done elsewhere.

        It is not known before the model was read. A proof may take seconds.
        """
        if self._rows is None and self._graphs is not None:
            self._rows = prove_rows(self._graphs)
        if self._rows is not None and not self._rows.by_request:
            self._graphs = None
        return NOT_READ if self._rows is None else self._rows

    @rows.setter
    def rows(self, verdict: RowVerdict) -> None:
        self._rows = verdict

    def prove_for(self, requests: Sequence[Arrays]) -> RowVerdict:
        """`rows`, from now on proven for requests such as these where they are not for all.

        It may take a second. The graph is given up: another call changes nothing.
        """
        known, graphs = self.rows, self._graphs
        if graphs is not None and requests:
            self._rows = known = prove_for_requests(graphs, known, requests)
        self._graphs = None
        return known

    def digest(self) -> str:
        """The digest of the model, its external data and its custom operators.

        Raises LoadFailed or OSError where they cannot be read.
        """
        files = [*self.files(), *self.libraries()]
        return hashlib.sha256("\n".join(map(self.digests.of, files)).encode()).hexdigest()

    def file_digests(self) -> dict[str, str]:
        """The SHA-256 of the model and its external data, in hex, by their paths in its folder.

        Raises LoadFailed or OSError where they cannot be read.
        """
        names = [self.path.name, *self.external()]
        return dict(zip(names, map(self.digests.of, self.files()), strict=True))

    def external(self) -> list[str]:
        """Where the model's external data lies in its folder. Raises LoadFailed."""
        return sorted(self.read().external)

    def files(self) -> list[Path]:
        """The model and its external data. Raises LoadFailed."""
        return [self.path, *(self.path.parent / location for location in self.external())]

    def libraries(self) -> list[Path]:
        """The libraries of custom operators. Raises LoadFailed where one may not be loaded."""
        return [self.rules.find_library(name) for name in self._library_names]

    def secure(self, cache: Path | None) -> None:
        """Keep what is opened from now on from being changed; `close` ends that.

        External data, which ONNX Runtime maps, is copied into the folder `cache` with its model, or
        read into memory where it cannot be. A model without is read when it is opened.

        Raises LoadFailed.
        """
        external = self.external()
        if not external:
            return
        taken = {self.origin.parent / location for location in external}
        try:
            if cache is None:
                raise OSError(ENOENT, "there is no cache folder")
            self.copy = copy_privately(self.origin, external, cache, self.digests)
            self.path = self.copy.path
            taken.add(self.origin)
        except OSError as error:
            self.in_memory = self._read_external(external, error)
        if not self.unchanged():
            self.close()
            raise LoadFailed(CHANGED)
        self._stamps = {path: one for path, one in self._stamps.items() if path not in taken}

    def resolve_links(self, cache: Path) -> None:
        """As `secure`, where external data is linked from elsewhere: ONNX Runtime refuses links.

        Raises LoadFailed.
        """
        if any(leads_out(self.origin, location) for location in self.external()):
            self.secure(cache)

    def close(self) -> None:
        """Give up what `secure` keeps: no session can be opened on it any more; open ones stay."""
        self.closed = self.copy is not None or bool(self.in_memory)
        self.in_memory = {}
        if self.copy is not None:
            self.copy.close()

    def memory_needed(self) -> int:
        """The bytes that opening it takes: as was measured, or else at least its size.

        Raises LoadFailed.
        """
        if self.peak and not self.in_memory:
            return self.peak
        on_disk = [self.path] if self.in_memory else self.files()
        try:
            size = sum(file.stat().st_size for file in on_disk)
        except OSError as error:
            raise LoadFailed(f"its files cannot be read: {error.strerror}") from error
        return max(self.peak, size + sum(map(len, self.in_memory.values())))

    def unchanged(self) -> bool:
        """Whether all files are still as they were just before the model was first read."""
        return all(stamp(path) == before for path, before in self._stamps.items())

    def _read(self) -> ModelFile:
        path, rules = self.path, self.rules
        with _told(path):
            check_model_file(path)
            rules.check_size([path])
            model = read_model(path, rules.max_nodes)
            main = model.graphs.main
            for location in sorted(model.external):
                check_external(path, location)
            rules.check_size([path, *(path.parent / location for location in model.external)])
            self.class_maps = find_class_maps(main.nodes, model.sequences)
            self.parts = find_parts(main.nodes, model.sequences, names_of_ends(main))
            graphs = model.graphs._replace(main=graph_with_parts(main, self.parts))
            self._graphs, self.tables = graphs, table_sizes(graphs.main)
            self.needs_entries = uses_any(graphs, ENDING_ON_EMPTY)
            self.decoders = find_decoders(graphs)
            self.divisions = find_divisions(graphs)
            return replace(model, graphs=NO_GRAPHS)  # they are given up once they were looked at

    def _read_external(self, external: Sequence[str], full: OSError) -> dict[str, bytes]:
        """External data by path in the folder; `full` is why it is not copied to the cache."""
        reason = full.strerror or str(full)
        folder, names = self.origin.parent, {str(Path(location)) for location in external}
        most = available_memory()
        try:
            size = sum((folder / name).stat().st_size for name in names)
            if size * COPIES_IN_MEMORY > most:
                raise LoadFailed(
                    f"its external data of {size >> 20:,} MiB can neither be copied to "
                    f"COHORT_CACHE ({reason}) nor be read into memory, where it takes "
                    f"{COPIES_IN_MEMORY} times that of {most >> 20:,} MiB"
                ) from full
            log.warning(
                "external data is read into memory, since it cannot be copied to COHORT_CACHE",
                model=self.origin.parent.parent.name,
                version=self.origin.parent.name,
                megabytes=size >> 20,
                reason=reason,
            )
            return {name: read_content(folder / name, self.digests) for name in names}
        except OSError as error:
            raise LoadFailed(f"its external data cannot be read: {error.strerror}") from error


def find_external(path: Path) -> list[str]:
    """Where the external data of a model to be copied lies, in the model's folder or linked there.

    Raises LoadFailed where it is missing, or would not be taken beside the copy.
    """
    with _told(path):
        check_model_file(path)
        external = sorted(read_model(path, sys.maxsize).external)
        for location in external:
            check_location(location)
            if not (path.parent / location).is_file():
                raise missing_external(path, location)
        return external


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Raise LoadFailed, with what is wrong with the model's file, for what reading it raises."""
    try:
        yield
    except FileNotFoundError as error:
        raise LoadFailed(f"{path.name} not found") from error
    except OSError as error:
        raise LoadFailed(f"{path.name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LoadFailed(f"{path.name} is {_why_no_model(path, error)}") from error


def _why_no_model(path: Path, error: Exception) -> str:
    with suppress(OSError):
        if kind := recognize(path):
            return kind
    return f"not an ONNX model, or is truncated: {error}"
