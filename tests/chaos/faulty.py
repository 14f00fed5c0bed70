"""A file system that shows a folder, and fails on command.

`python -m tests.chaos.faulty FOLDER AT CONTROL` shows FOLDER at AT, read-only, until the process
that started it ends. While the file CONTROL names an error, such as EIO, each access fails with it.
With `EIO read`, only reads of a file's content fail. With HANG, no access returns.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def main(source: str, at: str, control: str) -> None:
    """Serve it. Raises RuntimeError where FUSE cannot be used: it takes /dev/fuse."""
    import mfusepy  # type: ignore[import-untyped]

    def check(operation: str) -> None:
        name, _, only = Path(control).read_text().partition(" ")
        if name == "HANG":
            signal.pause()
        if name and only in ("", operation):
            raise mfusepy.FuseOSError(getattr(errno, name))

    class Faulty(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name not in ("getattr", "readdir", "readlink", "open", "read", "statfs"):
                return found

            def checked(*arguments: Any, **more: Any) -> Any:
                check(name)
                return found(*arguments, **more)

            return checked

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            status = os.lstat(source + path)
            return {
                name: getattr(status, name + ("_ns" if name[3:] == "time" else ""))
                for name in (
                    *("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size"),
                    *("st_atime", "st_mtime", "st_ctime"),
                )
            }

        def readdir(self, path: str, fh: int) -> Sequence[str]:
            return [".", "..", *(one.name for one in Path(source + path).iterdir())]

        def readlink(self, path: str) -> str:
            return str(Path(source + path).readlink())

        def open(self, path: str, flags: int) -> int:
            return os.open(source + path, flags)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

    mfusepy.FUSE(
        Faulty(), at, foreground=True, nothreads=True, ro=True, attr_timeout=0, entry_timeout=0
    )


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    main(*sys.argv[1:])
