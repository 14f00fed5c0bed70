"""The packages that are mutated, each with the tests that should notice a fault in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools import ROOT

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "app/cohort/scheduling": ("tests/scheduling",),
    "app/cohort/batching": ("tests/batching", "tests/scheduling"),
    "app/cohort/codec": ("tests/codec",),
    "app/cohort/rollouts": ("tests/rollouts",),
    "app/cohort/serving/coalescing.py": ("tests/serving",),
    "app/cohort/http/fast_path": ("tests/http/fast_path",),
    "app/cohort/http2": ("tests/http2", "tests/rpc"),
    "app/cohort/rpc/message_rows.py": ("tests/rpc/test_message_rows.py",),
    "app/cohort/notifications/webhooks.py": ("tests/notifications/test_webhooks.py",),
    "app/cohort/notifications/webhook_secret.py": ("tests/notifications/test_webhooks.py",),
    "app/cohort/process/notifications.py": (
        "tests/process/test_notifications.py",
        "tests/notifications/test_webhooks.py",
    ),
    "app/cohort/observability/access_log.py": (
        "tests/process/test_logs.py",
        "tests/process/test_request_lines.py",
    ),
    "app/cohort/operating": ("tests/operating",),
    "app/cohort/cli/rollout_commands": ("tests/cli/test_rollout.py",),
    "app/cohort/cli/bench_command": ("tests/cli/test_bench.py",),
    "app/cohort/cli/top_command": ("tests/cli/test_top.py",),
    "app/cohort/profiling/exactness": ("tests/profiling/exactness",),
    "app/cohort/inspection/drawing": (
        "tests/inspection/drawing",
        "tests/operating/test_drawings.py",
    ),
}
"""Paths under the repository's root: a package or module, and its tests."""


def modules(package: str, root: Path = ROOT) -> dict[str, str]:
    """Return the source of each module of `package` by its path."""
    path = root / package
    found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return {str(one.relative_to(root)): one.read_text(encoding="utf-8") for one in found}
