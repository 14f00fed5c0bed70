"""`make quick` runs the tests that a change needs, and leaves the others out."""

from __future__ import annotations

import pytest

from tools.quick.selection import select_tests

SOURCES = {
    "app/cohort/__init__.py": "",
    "app/cohort/errors.py": "",
    "app/cohort/queues/__init__.py": "from cohort.queues.heap import Heap",
    "app/cohort/queues/heap.py": "import heapq",
    "app/cohort/serving/__init__.py": "",
    "app/cohort/serving/plane.py": "def f():\n    from cohort.queues import Heap",
    "app/cohort/inspection/drawing/__init__.py": "from cohort import errors",
    "tests/__init__.py": "",
    "tests/fakes.py": "from tests.clocks import Clock",
    "tests/clocks.py": "",
    "tests/e2e/__init__.py": "",
    "tests/e2e/processes.py": "import subprocess",
    "tests/e2e/test_all.py": "from tests.e2e.processes import cohort",
    "tests/queues/test_heap.py": "from cohort.queues import Heap",
    "tests/queues/test_served.py": "from tests.e2e.processes import cohort",
    "tests/serving/test_plane.py": "from tests.fakes import Fake",
    "tests/serving/test_pacing.py": "from cohort.serving.plane import Plane",
    "tests/serving/test_other.py": "from cohort.serving import pace",
    "tests/serving/test_started.py": "import subprocess\nfrom cohort.serving.plane import Plane",
    "tests/serving/test_served.py": "from tests.e2e import processes",
    "tests/inspection/drawing/test_graph.py": "import cohort.inspection.drawing",
    "tests/tools/fuzz/test_fuzz.py": "",
    "tests/test_errors.py": "import cohort.errors",
    "tools/__init__.py": "",
    "tools/fuzz/__init__.py": "",
}


QUEUES = {"queues/test_heap", "queues/test_served", "serving/test_pacing", "serving/test_plane"}
SERVING = {f"serving/test_{name}" for name in ("other", "pacing", "plane", "served", "started")}


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        (
            "app/cohort/queues/heap.py",
            QUEUES,
        ),
        ("app/cohort/serving/plane.py", SERVING),
        ("app/cohort/errors.py", {"test_errors", "inspection/drawing/test_graph"}),
        ("tests/inspection/drawing/test_graph.py", {"inspection/drawing/test_graph"}),
        ("tests/e2e/test_all.py", {"e2e/test_all"}),
        ("tests/clocks.py", {"serving/test_plane"}),
        ("tests/e2e/processes.py", set()),
        ("tools/fuzz/__init__.py", {"tools/fuzz/test_fuzz"}),
        ("app/cohort/gone.py", set()),
        ("app/cohort/queues/gone.py", QUEUES),
        ("tests/inspection/drawing/test_gone.py", set()),
        ("app/cohort/queues/heap.json", set()),
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
    changed = ["tests/clocks.py", "app/cohort/serving/plane.py", "app/cohort/errors.py"]
    needed = {"inspection/drawing/test_graph", "test_errors", *SERVING}
    assert select_tests(changed, SOURCES) == sorted(f"tests/{test}.py" for test in needed)


MORE = {
    **SOURCES,
    "tests/conftest.py": "",
    "tests/serving/conftest.py": "",
    "tests/test_architecture.py": "",
    "tests/test_docs.py": "",
    "tests/process/test_service.py": "from cohort.queues import Heap",
    "tests/attacks/test_fuzz.py": "from tools.fuzz import targets",
    "tests/clients/test_queues.py": "from cohort.queues import Heap",
    "tests/session/test_providers_openvino.py": "from cohort.queues import Heap",
}


@pytest.mark.parametrize(
    ("changed", "some", "none"),
    [
        ("tests/serving/conftest.py", "serving/test_plane", "inspection/drawing/test_graph"),
        ("tests/conftest.py", "inspection/drawing/test_graph", "serving/test_served"),
        ("docs/guide/rollout.md", "test_docs", "test_errors"),
        ("app/cohort/queues/heap.py", "test_architecture", "test_docs"),
        ("app/cohort/queues/heap.py", "clients/test_queues", "process/test_service"),
        ("app/cohort/queues/heap.py", "queues/test_heap", "session/test_providers_openvino"),
        ("tools/fuzz/__init__.py", "attacks/test_fuzz", "process/test_service"),
    ],
)
def test_what_else_a_change_may_break_is_tested(changed: str, some: str, none: str) -> None:
    """Its importers, the layout and the pages are tested.

    Tests that take long, start processes or need another environment are not.
    """
    selected = select_tests([changed], MORE)
    assert f"tests/{some}.py" in selected
    assert f"tests/{none}.py" not in selected
