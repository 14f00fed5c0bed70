"""Models that a platform loads and unloads by request, as SageMaker's multi-model endpoints do.

The models folder then has only links, one for each loaded model, and the server follows it like any
other. All workers of a host share it.
"""

from __future__ import annotations

import asyncio
import fcntl
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO
from weakref import WeakValueDictionary
from zlib import crc32

from cohort.errors import (
    MODEL_NAME,
    MODEL_NAME_RULE,
    AlreadyLoaded,
    CohortError,
    InvalidInput,
    ModelNotFound,
    OutOfMemory,
    quoted,
)
from cohort.operating.plane import ControlPlane
from cohort.repository import Layout, why_not_one
from cohort.session import ROOM

ADDRESSES = ".addresses"
"""The subfolder with the address of each model, as the target of a link; scans ignore it."""

TURNS, MAX_TURNS, TURN_SECONDS = ".turns", 64, 0.05
"""The subfolder of locks, their number, and the interval of tries to get one."""

PAGE = 100
"""Models in one page of the list."""

MAX_FILES = 10_000


class Hosted(NamedTuple):
    """A loaded model, and the folder that it was loaded from."""

    name: str
    address: str


class MultiModel:
    """Loads, lists and unloads models by request.

    folder: The folder of links, which the server follows.
    plane: Loads and unloads in all workers.
    most: Maximum loaded models; None: no limit.
    """

    def __init__(self, folder: Path, plane: ControlPlane, most: int | None) -> None:
        self._folder, self._plane, self._most = folder, plane, most
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def load(self, name: str, address: str) -> None:
        """Load the model in the folder `address` under a name, and wait until it is ready.

        Raises AlreadyLoaded, OutOfMemory, or InvalidInput with the reason if there is no model at
        the address or it cannot be loaded.
        """
        if not MODEL_NAME.fullmatch(name):
            raise InvalidInput(f"model_name: {MODEL_NAME_RULE}, got {quoted(name)}")
        async with self._turn(name):
            await self._load(name, address)

    async def _load(self, name: str, address: str) -> None:
        await asyncio.to_thread(self._link, name, address)
        try:
            await self._plane.load(name)
        except CohortError as error:
            await self._forget(name)
            if "memory" in str(error) or "are free" in str(error):
                raise OutOfMemory(f"model {quoted(name)} does not fit: {error}") from error
            raise InvalidInput(f"model {quoted(name)} cannot be loaded: {error}") from error
        except BaseException:
            await asyncio.shield(self._forget(name))
            raise

    async def unload(self, name: str) -> None:
        """Unload a model; requests in flight finish. Raises ModelNotFound."""
        async with self._turn(name):
            await self.find(name)
            await self._forget(name)

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Wait until no other request, of any worker, changes the same name.

        Two unloads at once would also unload what comes after.
        """
        async with self._turns.setdefault(name, asyncio.Lock()):
            (self._folder / TURNS).mkdir(parents=True, exist_ok=True)
            turn = str(crc32(name.encode()) % MAX_TURNS)
            with (self._folder / TURNS / turn).open("a") as lock:
                while not _locked(lock):  # noqa: ASYNC110 - another process has it
                    await asyncio.sleep(TURN_SECONDS)
                yield

    async def find(self, name: str) -> Hosted:
        """Return a loaded model. Raises ModelNotFound."""
        if MODEL_NAME.fullmatch(name):
            with suppress(OSError):
                return await asyncio.to_thread(self._hosted, name)
        raise ModelNotFound(name)

    async def page(self, after: str) -> tuple[Sequence[Hosted], str]:
        """Return the loaded models whose names sort after one, and where the next page starts.

        The latter is "" on the last page.
        """
        return await asyncio.to_thread(self._page, after)

    def _page(self, after: str) -> tuple[Sequence[Hosted], str]:
        names = sorted(one for one in self._names() if one > after)
        found = []
        for name in names[:PAGE]:
            with suppress(OSError):  # unloaded since
                found.append(self._hosted(name))
        return found, names[PAGE - 1] if len(names) > PAGE else ""

    def _names(self) -> list[str]:
        with suppress(FileNotFoundError):
            return [one.name for one in (self._folder / ADDRESSES).iterdir()]
        return []

    def _hosted(self, name: str) -> Hosted:
        return Hosted(name, str((self._folder / ADDRESSES / name).readlink()))

    def _link(self, name: str, address: str) -> None:
        folder = self._find_model(address)
        (self._folder / ADDRESSES).mkdir(parents=True, exist_ok=True)
        with (self._folder / TURNS / "links").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # so that no two take the last place
            self._link_model(name, address, folder)

    def _link_model(self, name: str, address: str, folder: Path) -> None:
        loaded = self._names()
        if name not in loaded and self._most is not None and len(loaded) >= self._most:
            raise OutOfMemory(
                f"the maximum of {self._most} loaded models (COHORT_MAX_LOADED_MODELS) is reached; "
                "unload one first"
            )
        try:
            (self._folder / ADDRESSES / name).symlink_to(address)
        except FileExistsError:
            raise AlreadyLoaded(
                f"model {quoted(name)} is already loaded; unload it to replace it"
            ) from None
        try:
            if not ROOM.fits(_size_of(folder)):
                raise OutOfMemory(f"model {quoted(name)} does not fit in the free memory")
            (self._folder / name).symlink_to(folder)
        except BaseException:
            self._unlink(name)
            raise

    def _find_model(self, address: str) -> Path:
        """Return the folder of the only model at an address. Raises InvalidInput."""
        root = Path(address)
        if not root.is_absolute():
            raise InvalidInput(f"url must be an absolute path, got {quoted(address)}")
        try:
            home = Layout("").home(root)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(f"url: {quoted(address)} cannot be read: {reason}") from error
        if not home.name:
            raise InvalidInput(
                f"url: {quoted(address)} must have one model: a single .onnx file, "
                "<version>/model.onnx, or a folder with one of these"
            )
        folder = root / home.folder
        names = [one.name for one in islice(folder.iterdir(), MAX_FILES)]
        versions = any(one.isdecimal() for one in names)
        if not versions and (problem := why_not_one(names)):
            raise InvalidInput(f"url: {quoted(address)} {problem}")
        return folder.resolve()

    async def _forget(self, name: str) -> None:
        """Unload a model, and make the server notice that its files are gone."""
        with suppress(CohortError):
            await self._plane.unload(name)
        await asyncio.to_thread(self._unlink, name)
        with suppress(CohortError):
            await self._plane.load(name)

    def _unlink(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        (self._folder / ADDRESSES / name).unlink(missing_ok=True)


def _locked(file: TextIO) -> bool:
    """Lock a file, until it is closed, unless it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size_of(folder: Path) -> int:
    """Return the bytes of the files in and below a folder, of MAX_FILES at most."""
    size = 0
    for number, path in enumerate(folder.rglob("*")):
        if number > MAX_FILES:
            break
        with suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def begin_empty(folder: Path) -> None:
    """Remove all links, so that the server starts without models. Raises OSError."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / ADDRESSES).mkdir(parents=True)
