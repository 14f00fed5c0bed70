"""The files of a mirror, with a lock for writers and atomic installation of versions.

The layout of the folder::

    models/<name>/<version>/    served versions; each appears by a rename
    parts/                      incomplete files, whose fetch is resumed
    made/                       versions being assembled or removed
    ledger.json                 the source of each file in models/
    address                     the repository's address
    lock                        held by the only writer; other processes only read models/
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from cohort.remote.ledger import KeptVersion, Ledger
from cohort.repository import CONFIG_FILE, VERSION_NUMBER


class MirrorFiles:
    """The files of a mirror. Used by one thread at a time; its methods raise OSError.

    models: The folder that is served.
    parts: The folder of incomplete files.

    folder: The mirror's folder.
    address: The repository's address.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.models, self.parts = folder / "models", folder / "parts"
        self.ledger = Ledger()
        self._folder, self._made, self._address = folder, folder / "made", address
        self._lock = -1

    def lock(self) -> bool:
        """Become the only writer of the files; return False if another process is."""
        if self._lock >= 0:
            return True
        self.models.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)  # models are private to this user
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        shutil.rmtree(self._made, ignore_errors=True)  # a killed process left these
        self._made.mkdir(exist_ok=True)
        self.parts.mkdir(exist_ok=True)
        (self._folder / "address").write_text(f"{self._address}\n", encoding="utf-8")
        self.ledger = Ledger.read(self._folder / "ledger.json", self.models)
        return True

    def unlock(self) -> None:
        """Release the lock, so that another process may change the files."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def names(self) -> set[str]:
        """Return the models in the mirror."""
        try:
            return {path.name for path in self.models.iterdir() if path.is_dir()}
        except OSError:
            return set()

    def numbers(self, model: str) -> set[int]:
        """Return the versions of a model in the mirror."""
        try:
            names = [path.name for path in (self.models / model).iterdir()]
        except OSError:
            return set()
        return {int(name) for name in names if VERSION_NUMBER.fullmatch(name)}

    def new_folder(self) -> Path:
        """Make an empty folder in which a version is assembled."""
        folder = self._made / uuid4().hex
        folder.mkdir()
        return folder

    def install(self, model: str, number: int, made: Path, kept: KeptVersion) -> None:
        """Move a version that was assembled in `made` to its place."""
        target = self.models / model / str(number)
        target.parent.mkdir(exist_ok=True)
        self._throw_away(target)
        made.rename(target)
        self.ledger.versions[f"{model}/{number}"] = kept
        self._write()

    def remove(self, model: str, number: int) -> None:
        """Remove a version atomically."""
        self._throw_away(self.models / model / str(number))
        self.ledger.versions.pop(f"{model}/{number}", None)
        self._write()

    def put_config(self, model: str, content: bytes, identity: str) -> None:
        """Write a model's config to the served folder atomically."""
        path = self.models / model / CONFIG_FILE
        path.parent.mkdir(exist_ok=True)
        made = self._made / uuid4().hex
        made.write_bytes(content)
        made.replace(path)
        self.ledger.configs[model] = identity
        self._write()

    def remove_config(self, model: str) -> None:
        """Remove a model's config if it exists."""
        path = self.models / model / CONFIG_FILE
        if path.exists():
            path.unlink()
            self.ledger.configs.pop(model, None)
            self._write()

    def remove_model(self, model: str) -> None:
        """Remove a model with everything in its folder."""
        self._throw_away(self.models / model)
        self.ledger.configs.pop(model, None)
        self._write()

    def keep_parts(self, needed: Collection[Path]) -> None:
        """Remove incomplete files that are not `needed`."""
        for part in self.parts.iterdir():
            if part not in needed:
                part.unlink(missing_ok=True)

    def _throw_away(self, path: Path) -> None:
        gone = self._made / uuid4().hex
        with suppress(FileNotFoundError):
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _write(self) -> None:
        self.ledger.write(self._folder / "ledger.json")
