"""The files of one model: their paths, the rules that allow them, and their content."""

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
"""Copies of external data in memory while a session that does not map it is opened."""

ENDING_ON_EMPTY = frozenset({"LSTM", "GRU", "DynamicQuantizeLSTM"})
"""Operators for which ONNX Runtime 1.31 kills the process if they get no rows."""

CHANGED = "its files changed while it was loaded"


class ModelFiles:
    """The files of one model, each read once.

    path: the model; after its external data is copied, the private copy.
    rules: the limits of the model.
    custom_op_libraries: the names of its libraries of custom operators.

    origin: the operator's original model file.
    model_name: the model's name in the log; default: that of the folder above its version's.
    version_name: the version's number in the log: the name of its folder, or 1.
    closed: True after `close` released the data that `secure` kept; False if it kept no data.
    copy: the private copy; None if no copy was made.
    in_memory: external data that sessions use instead of the files, by path in the model's folder.
    digests: the digests of files that were read.
    peak: the bytes that opening and first running it took in another process; 0: unknown.
    tables: the number of entries of each table that an input indexes, by the input's name; empty
        before the model was read.
    needs_entries: True if a run of an empty input would kill the process; False before the model
        was read.
    class_maps: the classes of outputs that are dictionaries in the file and are opened as columns;
        empty before the model was read.
    parts: the tensors of outputs that are sequences; each tensor is opened as a separate output.
        Empty before the model was read.
    decoders: its operators that decode files, with their domains; none before the model was read.
    divisions: its integer divisions that could kill the process; none before the model was read.
    """

    def __init__(
        self, path: Path, rules: ModelRules, custom_op_libraries: Sequence[str] = ()
    ) -> None:
        self.path, self.rules, self.digests = path, rules, Digests()
        self.origin = path
        self.model_name, number = path.parent.parent.name, path.parent.name
        self.version_name = number if number.isdecimal() else "1"
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
        """Return the content of the model's main file. Raises LoadFailed if it is not allowed."""
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
        """The verdict on row independence: proven now, unless another process proved it.

        It is unknown before the model was read. A proof may take seconds.
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
        """Prove `rows` for requests like these if it is not proven for all, and return it.

        It may take a second. The graph is released, so another call changes nothing.
        """
        known, graphs = self.rows, self._graphs
        if graphs is not None and requests:
            self._rows = known = prove_for_requests(graphs, known, requests)
        self._graphs = None
        return known

    def digest(self) -> str:
        """Return the digest of the model, its external data and its custom operators.

        Raises LoadFailed or OSError if they cannot be read.
        """
        files = [*self.files(), *self.libraries()]
        return hashlib.sha256("\n".join(map(self.digests.of, files)).encode()).hexdigest()

    def file_digests(self) -> dict[str, str]:
        """Return the SHA-256 of the model and its external data, in hex, by path in its folder.

        Raises LoadFailed or OSError if they cannot be read.
        """
        names = [self.path.name, *self.external()]
        return dict(zip(names, map(self.digests.of, self.files()), strict=True))

    def external(self) -> list[str]:
        """Return the paths of the model's external data in its folder. Raises LoadFailed."""
        return sorted(self.read().external)

    def files(self) -> list[Path]:
        """Return the paths of the model and its external data. Raises LoadFailed."""
        return [self.path, *(self.path.parent / location for location in self.external())]

    def libraries(self) -> list[Path]:
        """Return the libraries of custom operators. Raises LoadFailed if one may not be loaded."""
        return [self.rules.find_library(name) for name in self._library_names]

    def secure(self, cache: Path | None) -> None:
        """Protect the files that sessions open from changes, until `close`.

        ONNX Runtime maps external data, so `secure` copies the data and the model into the folder
        `cache`. If it cannot copy the data, it reads the data into memory. A model without external
        data is read when it is opened.

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
        """Call `secure` if external data is a link out of the folder: ONNX Runtime refuses links.

        Raises LoadFailed.
        """
        if any(leads_out(self.origin, location) for location in self.external()):
            self.secure(cache)

    def close(self) -> None:
        """Release the data that `secure` keeps: no new session can be opened; open ones stay."""
        self.closed = self.copy is not None or bool(self.in_memory)
        self.in_memory = {}
        if self.copy is not None:
            self.copy.close()

    def memory_needed(self) -> int:
        """Return the bytes that opening it takes: the measured number, or else at least its size.

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
        """Return True if no file has changed since just before the model was first read."""
        return all(stamp(path) == before for path, before in self._stamps.items())

    def _read(self) -> ModelFile:
        path, rules = self.path, self.rules
        with _load_errors(path):
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
            return replace(model, graphs=NO_GRAPHS)  # released after the analysis

    def _read_external(self, external: Sequence[str], full: OSError) -> dict[str, bytes]:
        """Return external data by path in the folder; `full`: why it is not copied to the cache."""
        reason = full.strerror or str(full)
        folder, names = self.origin.parent, {str(Path(location)) for location in external}
        most = available_memory()
        try:
            size = sum((folder / name).stat().st_size for name in names)
            if size * COPIES_IN_MEMORY > most:
                raise LoadFailed(
                    f"its external data of {size >> 20:,} MiB cannot be copied to COHORT_CACHE "
                    f"({reason}). Reading it into memory needs {COPIES_IN_MEMORY} times its "
                    f"size, but {most >> 20:,} MiB are available"
                ) from full
            log.warning(
                "external data is read into memory, since it cannot be copied to COHORT_CACHE",
                model=self.model_name,
                version=self.version_name,
                megabytes=size >> 20,
                reason=reason,
            )
            return {name: read_content(folder / name, self.digests) for name in names}
        except OSError as error:
            raise LoadFailed(f"its external data cannot be read: {error.strerror}") from error


def find_external(path: Path) -> list[str]:
    """Return the paths of a model's external data, before a copy: files or links in its folder.

    Raises LoadFailed if a file is missing, or its path would not be allowed for the copy.
    """
    with _load_errors(path):
        check_model_file(path)
        external = sorted(read_model(path, sys.maxsize).external)
        for location in external:
            check_location(location)
            if not (path.parent / location).is_file():
                raise missing_external(path, location)
        return external


@contextmanager
def _load_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading the model's file to LoadFailed, with a description of the fault."""
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
