"""A folder that replaces the image, with the Cohort of this checkout."""

from __future__ import annotations

import shutil
import site
import sys
from pathlib import Path
from typing import Any

from tests.e2e.processes import MODELS, ROOT

PACKAGES = Path(site.getsitepackages()[0])
PYTHON = Path(sys.base_prefix)

ENVIRONMENT = {
    "PATH": "/opt/cohort/bin:/usr/bin:/bin",
    "PYTHONPATH": "/opt/cohort/app:/opt/cohort/packages",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "ORT_DISABLE_TELEMETRY": "1",
}

MOUNTS = {
    Path("/usr"): "/usr",
    Path("/etc/ld.so.cache"): "/etc/ld.so.cache",
    PYTHON: str(PYTHON),
    ROOT / "app": "/opt/cohort/app",
    PACKAGES: "/opt/cohort/packages",
}
"""Read-only mounts of the root: their sources are not copied."""


def write_image(folder: Path) -> Path:
    """Write the root of the image, with the bundled models in /models."""
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            folder.mkdir(exist_ok=True)
            (folder / name).symlink_to(f"usr/{name}")
    program = folder / "opt/cohort/bin/cohort"
    program.parent.mkdir(parents=True)
    python = PYTHON / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    program.write_text(f"#!{python}\nfrom cohort.__main__ import main\n\nmain()\n")
    program.chmod(0o755)
    shutil.copytree(MODELS, folder / "models", ignore=shutil.ignore_patterns(".*", "*.py", "*.md"))
    return folder


def image_mounts() -> list[dict[str, Any]]:
    """Return the mounts of the image, as the OCI runtime's specification has them."""
    own = [
        {
            "destination": at,
            "type": "bind",
            "source": str(source),
            "options": ["rbind", "ro", "nosuid"],
        }
        for source, at in MOUNTS.items()
        if not (source.is_relative_to("/usr") and source != Path("/usr"))
    ]
    system = [
        ("/proc", "proc", []),
        ("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/shm", "tmpfs", ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        ("/sys/fs/cgroup", "cgroup", ["nosuid", "noexec", "nodev", "ro"]),
    ]
    return own + [
        {"destination": at, "type": kind, "source": kind, "options": options}
        for at, kind, options in system
    ]
