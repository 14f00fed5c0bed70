"""Detecting that an operator's file has changed and is no longer being written."""

from __future__ import annotations

import asyncio
import stat
import time
from itertools import islice
from pathlib import Path

SETTLE_SECONDS = 0.25
"""Seconds a file must not change before it is read: editors and copies write in parts."""

MAX_STAMPED = 1000
"""Limit of files that count in the stamp of a followed folder."""

FileStamp = tuple[int, int, int] | None
"""A file's modification time (ns), size and inode; None if it is missing or unreadable."""

NEVER_SEEN: FileStamp = (-1, -1, -1)
"""A stamp that no file has."""


async def settled_stamp(path: Path, seen: FileStamp) -> FileStamp:
    """Return the stamp of the file at `path`: at once if it is `seen`, else after writing ended."""
    stamp = await asyncio.to_thread(file_stamp, path)
    if stamp == seen:
        return stamp
    while stamp is not None and abs(time.time() - stamp[0] / 1e9) < SETTLE_SECONDS:
        before = stamp
        await asyncio.sleep(SETTLE_SECONDS)
        stamp = await asyncio.to_thread(file_stamp, path)
        if stamp == before:
            break
    return stamp


def file_stamp(path: Path) -> FileStamp:
    """Return the current stamp of the file at `path`; a folder's stamp covers all its files."""
    try:
        found = [path.stat()]
        if stat.S_ISDIR(found[0].st_mode):
            found += [one.stat() for one in islice(sorted(path.iterdir()), MAX_STAMPED)]
    except OSError:
        return None
    stamps = [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found]
    if len(stamps) == 1:
        return stamps[0]
    return max(stamps)[0], sum(one[1] for one in stamps), hash(tuple(stamps))
