"""`make quick` runs the tests that a change needs, and leaves the others out."""

from __future__ import annotations

import pytest

from tools.quick.selection import select_tests

SOURCES = {
    "app/__init__.py": "",
    "app/errors.py": "",
    "app/queues/__init__.py": "from app.queues.heap import Heap",
    "app/queues/heap.py": "import heapq",
    "app/serving/__init__.py": "",
    "app/serving/plane.py": "def f():\n    from app.queues import Heap",
    "app/drawing/__init__.py": "from app import errors",
    "tests/__init__.py": "",
    "tests/fakes.py": "from tests.clocks import Clock",
    "tests/clocks.py": "",
    "tests/e2e/__init__.py": "",
    "tests/e2e/processes.py": "import subprocess",
    "tests/e2e/test_all.py": "from tests.e2e.processes import cohort",
    "tests/queues/test_heap.py": "from app.queues import Heap",
    "tests/queues/test_served.py": "from tests.e2e.processes import cohort",
    "tests/serving/test_plane.py": "from tests.fakes import Fake",
    "tests/serving/test_pacing.py": "from app.serving.plane import Plane",
    "tests/serving/test_other.py": "from app.serving import pace",
    "tests/serving/test_started.py": "import subprocess\nfrom app.serving.plane import Plane",
    "tests/serving/test_served.py": "from tests.e2e import processes",
    "tests/drawing/test_graph.py": "import app.drawing",
    "tests/tools/fuzz/test_fuzz.py": "",
    "tests/test_errors.py": "import app.errors",
    "tools/__init__.py": "",
    "tools/fuzz/__init__.py": "",
}


QUEUES = {"queues/test_heap", "queues/test_served", "serving/test_pacing", "serving/test_plane"}
SERVING = {f"serving/test_{name}" for name in ("other", "pacing", "plane", "served", "started")}


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        (
            "app/queues/heap.py",
            QUEUES,
        ),
        ("app/serving/plane.py", SERVING),
        ("app/errors.py", {"test_errors", "drawing/test_graph"}),
        ("tests/drawing/test_graph.py", {"drawing/test_graph"}),
        ("tests/e2e/test_all.py", {"e2e/test_all"}),
        ("tests/clocks.py", {"serving/test_plane"}),
        ("tests/e2e/processes.py", set()),
        ("tools/fuzz/__init__.py", {"tools/fuzz/test_fuzz"}),
        ("app/gone.py", set()),
        ("app/queues/gone.py", QUEUES),
        ("tests/drawing/test_gone.py", set()),
        ("app/queues/heap.json", set()),
        ("README.md", set()),
    ],
)
def test_change_needs_its_tests_and_those_of_what_imports_it(
    changed: str, needed: set[str]
) -> None:
    """Tests that start processes run only if they, or the package that they test, changed."""
    assert select_tests([changed], SOURCES) == sorted(f"tests/{test}.py" for test in needed)


def test_changes_add_up() -> None:
    """Two changes need the tests of both, each once."""
    changed = ["tests/clocks.py", "app/serving/plane.py", "app/errors.py"]
    needed = {"drawing/test_graph", "test_errors", *SERVING}
    assert select_tests(changed, SOURCES) == sorted(f"tests/{test}.py" for test in needed)
