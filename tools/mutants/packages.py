"""The packages that are mutated, each with the tests that should notice a fault in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools import ROOT

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "app/scheduling": ("tests/scheduling",),
    "app/batching": ("tests/batching", "tests/scheduling"),
    "app/codec": ("tests/codec",),
    "app/rollouts": ("tests/rollouts",),
    "app/data_plane/coalescing.py": ("tests/data_plane",),
    "app/rest/hot": ("tests/rest/hot",),
    "app/rpc/http2": ("tests/rpc/http2", "tests/rpc"),
    "app/rpc/message_rows.py": ("tests/rpc/test_message_rows.py",),
    "app/webhooks.py": ("tests/test_webhooks.py",),
    "app/webhook_secret.py": ("tests/test_webhooks.py",),
    "app/main/notifications.py": ("tests/main/test_notifications.py", "tests/test_webhooks.py"),
    "app/access_log.py": ("tests/main/test_logs.py", "tests/main/test_request_lines.py"),
    "app/control_plane": ("tests/control_plane",),
    "app/cli/rollout_commands": ("tests/cli/test_rollout.py",),
    "app/cli/bench_command": ("tests/cli/test_bench.py",),
    "app/cli/top_command": ("tests/cli/test_top.py",),
    "app/exactness": ("tests/exactness",),
    "app/drawing": ("tests/drawing", "tests/control_plane/test_drawings.py"),
}
"""Paths under the repository's root: a package or module, and its tests."""


def modules(package: str, root: Path = ROOT) -> dict[str, str]:
    """Return the source of each module of `package` by its path."""
    path = root / package
    found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return {str(one.relative_to(root)): one.read_text(encoding="utf-8") for one in found}
