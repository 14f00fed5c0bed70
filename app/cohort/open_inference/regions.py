"""Shared memory regions that callers register, for reading inputs and writing outputs.

A region is a part of a POSIX shared memory object, a file in /dev/shm. It is read using `preadv`,
written using `pwrite`, and never mapped. Its owner may shorten it at any moment: that kills a
process that has mapped it, and otherwise causes a short read.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
"""

from __future__ import annotations

import os
import stat
import weakref
from typing import Any, NamedTuple

import numpy as np

from cohort.codec.binary import BytesLike
from cohort.errors import Forbidden, InvalidInput, NotFound, TooLarge, quoted

FOLDER = "/dev/shm"  # noqa: S108 - the folder of shm_open's objects

MAX_REGIONS = 256
"""Maximum regions of all callers; each needs a file descriptor."""

MAX_PER_CALLER = 64
"""Maximum regions of one caller, if callers need keys."""

MAX_NAME = 255
"""Maximum characters of a region's name, and bytes of a key."""

WRITTEN_AT_ONCE = 1 << 30

NO_CUDA = "CUDA's shared memory is not supported; the system's is"

OFF = "shared memory is off: COHORT_SHARED_MEMORY is not set"


class SharedPart(NamedTuple):
    """A tensor's location in shared memory.

    place: The path of the parameter in the request, for messages.
    region: The region's name.
    size: The tensor's bytes; for an output, the maximum.
    offset: The tensor's first byte in the region.
    """

    place: str
    region: str
    size: int
    offset: int


class Region:
    """A registered part of a shared memory object. All methods may be called on any thread.

    The object stays open while a request uses the region, even after it is unregistered.

    name: The region's name.
    key: The object's name.
    offset, size: The registered part, in bytes.

    Raises InvalidInput if the object does not exist or is too small.
    """

    def __init__(self, name: str, key: str, offset: int, size: int) -> None:
        self.name, self.key, self.offset, self.size = name, key, offset, size
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            self._descriptor = os.open(f"{FOLDER}/{key.removeprefix('/')}", flags)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise InvalidInput(
                f"the shared memory {quoted(key)} cannot be opened for reading and "
                f"writing: {reason}"
            ) from None
        weakref.finalize(self, os.close, self._descriptor)
        self._check(size, offset)

    def check(self, part: SharedPart) -> None:
        """Raise InvalidInput unless a part is inside the region and its object."""
        if part.offset + part.size > self.size:
            raise InvalidInput(
                f"{part.place}: {part.size} bytes from {part.offset} on are outside shared memory "
                f"region {quoted(self.name)}, which has {self.size} bytes"
            )
        self._check(part.size, self.offset + part.offset)

    def read(self, part: SharedPart) -> BytesLike:
        """Return a copy of a part. Raises InvalidInput if the part is not there."""
        self.check(part)
        data = np.empty(part.size, np.uint8).data
        at, begin = 0, self.offset + part.offset
        while at < part.size:
            count = os.preadv(self._descriptor, [data[at:]], begin + at)
            if not count:
                raise self._shrunken()
            at += count
        return data

    def write(self, part: SharedPart, data: BytesLike) -> None:
        """Write data at the beginning of a part. Raises InvalidInput if the part is not there."""
        self.check(part)
        view, at, begin = memoryview(data).cast("B"), 0, self.offset + part.offset
        try:
            while at < len(view):
                some = view[at : at + WRITTEN_AT_ONCE]
                at += os.pwrite(self._descriptor, some, begin + at)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise InvalidInput(
                f"shared memory region {quoted(self.name)} cannot be written: {reason}"
            ) from None

    def _check(self, size: int, offset: int) -> None:
        """Raise InvalidInput unless the object still exists and is large enough."""
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{quoted(self.key)} is not shared memory")
        if found.st_nlink != 1:  # a second link may give one caller access to another's memory
            state = "has a second name" if found.st_nlink else "was removed"
            raise InvalidInput(
                f"the shared memory {quoted(self.key)} of region {quoted(self.name)} {state}: "
                "create it, unregister the region and register it again"
            )
        if offset + size > found.st_size:
            raise self._shrunken(found.st_size, offset + size)

    def _shrunken(self, size: int | None = None, needed: int | None = None) -> InvalidInput:
        sizes = "" if size is None else f": it has {size} bytes, and {needed} are needed"
        return InvalidInput(
            f"the shared memory {quoted(self.key)} of region {quoted(self.name)} is too small"
            f"{sizes}"
        )


class Regions:
    """The regions that callers have registered. A caller with a key has access to its own only.

    prefix: Required prefix of shared memory keys; default "": registration is off.
    most_bytes: Maximum bytes of a request's inputs in shared memory; default: 64 MiB.
    workers: Number of worker processes; regions require exactly one. Default 1.
    """

    def __init__(self, prefix: str = "", *, most_bytes: int = 64 << 20, workers: int = 1) -> None:
        self._prefix, self._workers = prefix, workers
        self._most_bytes = most_bytes
        self._regions: dict[tuple[str, str], Region] = {}

    def register(
        self, owner: str, name: str, key: str, *, offset: int, size: int, admin: bool = False
    ) -> None:
        """Register a region.

        owner: The caller's name; "" if callers need no key.
        name: The region's name.
        key: The name of the shared memory object.
        offset, size: The part of the object, in bytes.
        admin: True if the caller is an operator; default False.

        Raises Forbidden for a key that the caller may not use, and InvalidInput.
        """
        self._check_key(owner, key, admin=admin)
        if not 0 < len(name) <= MAX_NAME:
            raise InvalidInput(f"a region's name has 1 to {MAX_NAME} characters, got {len(name)}")
        if not size:
            raise InvalidInput("byte_size must be > 0")
        if (owner, name) in self._regions:
            raise InvalidInput(
                f"shared memory region {quoted(name)} is registered already: unregister it first"
            )
        own = sum(one == owner for one, _ in self._regions)
        if len(self._regions) >= MAX_REGIONS or (owner and own >= MAX_PER_CALLER):
            raise InvalidInput(
                f"this caller has {own} shared memory regions, and all callers have "
                f"{len(self._regions)}. The limits are {MAX_PER_CALLER} for a caller with a key, "
                f"and {MAX_REGIONS} for all. Unregister unused regions"
            )
        self._regions[owner, name] = Region(name, key, offset, size)

    def _check_key(self, owner: str, key: str, *, admin: bool) -> None:
        if not self._prefix:
            raise Forbidden(f"{OFF}; the operator sets it to the prefix of keys, such as /cohort_")
        if self._workers > 1:
            raise Forbidden(
                "shared memory regions exist in one process, but this server has "
                f"{self._workers} (COHORT_WORKERS): send tensors in the request"
            )
        file = key.removeprefix("/")
        if not key.isprintable() or "/" in file or len(key.encode()) > MAX_NAME:
            raise InvalidInput(f"{quoted(key)} is not a valid key of shared memory, such as /name")
        prefix = self._prefix if not owner or admin else f"{self._prefix}{owner}:"
        if not key.startswith(prefix):
            whose = "" if prefix == self._prefix else " followed by this caller's name and ':'"
            raise Forbidden(
                f"shared memory key {quoted(key)} does not begin with {quoted(prefix)}, which is "
                f"COHORT_SHARED_MEMORY{whose}"
            )

    def unregister(self, owner: str, name: str = "") -> None:
        """Unregister a caller's region if it exists; by default all its regions."""
        for one in [one for one in self._regions if one[0] == owner and name in ("", one[1])]:
            del self._regions[one]

    def status(self, owner: str, name: str = "") -> list[dict[str, Any]]:
        """Describe a caller's region; by default all its regions. Raises NotFound."""
        found = [
            region
            for (whose, _), region in self._regions.items()
            if whose == owner and name in ("", region.name)
        ]
        if name and not found:
            raise NotFound(f"shared memory region {quoted(name)} is not registered")
        return [
            {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.size}
            for one in found
        ]

    def admit(self, place: str, size: int) -> None:
        """Raise InvalidInput if shared memory is off, and TooLarge for more than `most_bytes`.

        place: The path of the request's first parameter that names shared memory.
        size: The bytes of all inputs in shared memory.
        """
        if not self._prefix:
            raise InvalidInput(f"{place}: {OFF}")
        if size > self._most_bytes:
            raise TooLarge(
                f"the inputs in shared memory have {size} bytes; the limit per request is "
                f"{self._most_bytes} (COHORT_MAX_BODY_MB)"
            )

    def find(self, owner: str, part: SharedPart) -> Region:
        """Return the region of a part. Raises InvalidInput if either does not exist."""
        region = self._regions.get((owner, part.region))
        if region is None:
            raise InvalidInput(
                f"{part.place}: shared memory region {quoted(part.region)} is not registered"
            )
        region.check(part)
        return region


NO_REGIONS = Regions()
