"""The outcome of each mutation, kept from run to run, and the equivalent mutations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools import ROOT
from tools.mutants.mutations import Mutation
from tools.mutants.packages import PACKAGES

EQUIVALENT = Path(__file__).parent / "equivalent.yaml"

KILLED = frozenset({"killed", "timeout"})


def digest(*texts: str) -> str:
    """Return a short hash of `texts`."""
    return sha256("\0".join(texts).encode()).hexdigest()[:16]


def digest_of_tests(package: str, root: Path = ROOT) -> str:
    """Return a hash of the sources of a package's tests."""
    files = set((root / "tests").glob("*.py"))
    for path in (root / name for name in PACKAGES[package]):
        files |= set(path.rglob("*.py")) if path.is_dir() else {path}
    return digest(*(path.read_text(encoding="utf-8") for path in sorted(files)))


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of a mutation of a function with source `scope`, run against `tests`.

    `outcome` is killed, timeout, survived or, if no test runs its line, not reached.
    """

    id: str
    outcome: str
    scope: str
    tests: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.outcome in KILLED

    def holds(self, mutation: Mutation, tests: str) -> bool:
        """Return True if the outcome is current: same function and, unless killed, same tests."""
        return self.scope == digest(mutation.scope) and (self.killed or self.tests == tests)


class Records:
    """A file of JSON lines, one for each run; the last line of a mutation counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_id: dict[str, Record] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._keep(Record(**json.loads(line)))

    def _keep(self, record: Record) -> None:
        self._by_id[record.id] = record

    def add(self, record: Record) -> None:
        """Keep a record, and write it at once: a run may be interrupted at any time."""
        self._keep(record)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            fields: dict[str, Any] = {name: getattr(record, name) for name in Record.__slots__}
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")

    def get(self, mutation: Mutation, tests: str) -> Record | None:
        """Return the record of a mutation; None if there is none or it is out of date."""
        record = self._by_id.get(mutation.id)
        return record if record is not None and record.holds(mutation, tests) else None


def read_equivalent(path: Path = EQUIVALENT) -> Mapping[str, Mapping[str, str]]:
    """Return the reason why a mutation is equivalent, by file and name."""
    listed = YAML(typ="safe").load(path) or {}
    return {file: {one["mutant"]: one["why"] for one in ones} for file, ones in listed.items()}


def unknown(equivalent: Mapping[str, Mapping[str, str]], made: Iterable[Mutation]) -> list[str]:
    """List the mutations declared equivalent that can no longer be made."""
    ids = {mutation.id for mutation in made}
    listed = [f"{file}::{name}" for file, names in equivalent.items() for name in names]
    return [one for one in listed if one not in ids]
