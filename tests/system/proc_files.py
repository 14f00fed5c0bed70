"""Files as Linux has them in /proc and /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def make_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files by their names in a folder, which is returned."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def mountinfo(folder: Path, root: str = "/") -> str:
    """The lines of hierarchies whose group `root` is mounted: v2 at a folder, v1 inside it."""
    where = str(folder).replace(" ", r"\040")
    return "\n".join(
        [
            "20 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda1 rw",
            f"31 20 0:31 {root} {where} rw shared:4 - cgroup2 cgroup2 rw,nsdelegate",
            f"32 20 0:32 {root} {where}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            f"33 20 0:33 {root} {where}/memory rw - cgroup cgroup rw,memory",
        ]
    )
