"""What each file of a mirror was made of, so that it is fetched once."""

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
    """A file as it was fetched.

    identity: That of the remote file.
    sha256: Of the content, in hex.
    size: Bytes.
    """

    identity: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A version as it was fetched; `identity` is that of the remote one."""

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
        """What the file at `path` says, as far as files in `models` have the sizes that it says.

        One that cannot be read counts as empty: everything is fetched again.
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
        """Keep what is known. Raises OSError."""
        write_whole(path, json.dumps(asdict(self)))

    def find(self, sha256: str) -> Iterator[str]:
        """The files that had this content when they were fetched, as `<name>/<version>/<path>`."""
        for place, version in list(self.versions.items()):
            for path, file in version.files.items():
                if file.sha256 == sha256:
                    yield f"{place}/{path}"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
