"""The control groups of this process, which contain the limits of containers and of systemd.

A process is in one group for each controller. The limits of a group also apply to groups inside it.
https://man7.org/linux/man-pages/man7/cgroups.7.html
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PROC = Path("/proc")


class Cgroup(NamedTuple):
    """The folder of a group, with the files of version 2 or of version 1."""

    folder: Path
    version: int

    def number(self, name: str) -> int | None:
        """Return the number in a file; None if the file is missing, or has "max" or -1."""
        with suppress(OSError, ValueError):
            return value if (value := int((self.folder / name).read_text())) >= 0 else None
        return None


class _Mount(NamedTuple):
    """A mount of groups: `root` is the group at `folder`."""

    root: PurePosixPath
    folder: Path
    version: int
    controllers: frozenset[str]


def cgroups(controller: str, proc: Path = PROC) -> Iterator[Cgroup]:
    """Iterate over this process's groups for a controller such as "memory", innermost first.

    Groups outside the mount, such as those that contain a container, are not visible. Systems
    other than Linux have no groups.
    """
    paths = _paths(proc, controller)
    for mount in _mounts(proc):
        if controller not in mount.controllers and mount.version == 1:
            continue
        path = paths.get(mount.version, PurePosixPath("/"))
        if path.is_relative_to(mount.root):
            path = path.relative_to(mount.root)
        inside = mount.folder / str(path).lstrip("/")
        for folder in (inside, *inside.parents):
            if folder.is_relative_to(mount.folder) and ".." not in folder.parts:
                yield Cgroup(folder, mount.version)


def _paths(proc: Path, controller: str) -> dict[int, PurePosixPath]:
    """Return the paths of this process's groups by version, in its cgroup namespace."""
    paths = {}
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                paths[2] = PurePosixPath(path)
            elif controller in controllers.split(","):
                paths[1] = PurePosixPath(path)
    return paths


@lru_cache(maxsize=8)
def _mounts(proc: Path) -> tuple[_Mount, ...]:
    """List mounted hierarchies: https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html."""
    mounts = []
    with suppress(OSError):
        for line in (proc / "self/mountinfo").read_text().splitlines():
            place, _, kind = line.partition(" - ")
            file_system, _, options = kind.split(" ", 2)
            if file_system in {"cgroup", "cgroup2"}:
                root, folder = (_unescaped(word) for word in place.split(" ")[3:5])
                controllers = frozenset(options.split(","))
                version = 2 if file_system == "cgroup2" else 1
                mounts.append(_Mount(PurePosixPath(root), Path(folder), version, controllers))
    return tuple(mounts)


def _unescaped(word: str) -> str:
    """Decode a path of mountinfo, which escapes spaces and similar characters as octal numbers."""
    return word.encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
