"""Counts of the comparison with other servers, and their table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks import labelling, usage
from benchmarks.labelling import Round

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"],
                         start_new_session=True, stdin=sys.stdin)
print(child.pid, flush=True)
child.wait()
"""


def test_processes_with_sessions_of_their_own_count() -> None:
    """BentoML's workers have them: what they use is the server's."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert parent.stdout is not None
    lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    (child,) = lines - {"up"}
    found = usage.processes(parent.pid)
    parent.communicate("\n")
    assert found == [Path(f"/proc/{parent.pid}"), Path(f"/proc/{child}")]


def test_ratios_are_of_the_same_round() -> None:
    """A round that the first server lacks is left out; a server without rounds has a note."""
    rounds = [
        {"a": Round(100, 1.0, 1, 2, 0.1), "b": Round(50, 2.0, 1, 2, 0.1)},
        {"b": Round(30, 8.0, 1, 2, 0.1)},
    ]
    first, second, third = labelling._cells(8, ["a", "b", "c"], rounds)
    assert first[:5] == ["8", "a", "100", "100 to 100", "1"]
    assert second[labelling.COLUMNS.index("of Cohort's")] == "2"
    assert second[-1] == "2"
    assert third[2] == "every round was dropped"
