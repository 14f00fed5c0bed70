"""The record of the files in a mirror, so that each is fetched once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cohort.system.kept_files import read_small, write_whole

LEDGER_FORMAT = 1

MAX_LEDGER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A fetched file.

    identity: The identity of the remote file.
    sha256: The SHA-256 of the content, in hex.
    size: The size in bytes.
    """

    identity: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A fetched version; `identity` is that of the remote version."""

    identity: str
    files: Mapping[str, KeptFile]


@dataclass(slots=True)
class Ledger:
    """The versions of a mirror, as `<name>/<version>`, and its configs, by model."""

    format: int = LEDGER_FORMAT
    versions: dict[str, KeptVersion] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, models: Path) -> Ledger:
        """Read the ledger at `path`, without versions whose files in `models` have other sizes.

        An unreadable ledger counts as empty, and everything is fetched again.
        """
        try:
            ledger = TypeAdapter(cls).validate_json(read_small(path, MAX_LEDGER_BYTES))
        except (OSError, ValidationError, ValueError):
            return cls()
        if ledger.format != LEDGER_FORMAT:
            return cls()
        for place, version in list(ledger.versions.items()):
            folder = models / place
            if any(_size(folder / path) != file.size for path, file in version.files.items()):
                del ledger.versions[place]
        return ledger

    def write(self, path: Path) -> None:
        """Write the ledger to `path`. Raises OSError."""
        write_whole(path, json.dumps(asdict(self)))

    def find(self, sha256: str) -> Iterator[str]:
        """Yield files that had this content when fetched, as `<name>/<version>/<path>`."""
        for place, version in list(self.versions.items()):
            for path, file in version.files.items():
                if file.sha256 == sha256:
                    yield f"{place}/{path}"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
