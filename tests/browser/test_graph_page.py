"""`cohort inspect --html` in a real browser, opened from a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from playwright.sync_api import expect

from cohort.cli.options import OK
from tests import onnx_models
from tests.browser.page import CHROMIUM, Browser, browser
from tests.cli.test_cli import run
from tests.e2e.processes import MODELS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

HOSTILE = "</script><script>window.smuggled = true</script><img src=x onerror='window.smuggled=1'>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all tests."""
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: Browser) -> Browser:
    """A page without complaints so far; each test shows its own graph there."""
    chromium.complaints.clear()
    return chromium


def drawn(model: Path, folder: Path) -> str:
    """The address of the page of a model."""
    done = run("inspect", str(model), "--html", str(folder / "graph.html"))
    assert done.exit_code == OK, done.stderr
    return (folder / "graph.html").as_uri()


def layers(*operators: str, times: int = 1, name: str = "") -> onnx.ModelProto:
    """A chain of operators of one input, over and over."""
    nodes = [
        helper.make_node(operator, [f"v{place}"], [f"v{place + 1}"], name=f"{name}{place}")
        for place, operator in enumerate(operators * times)
    ]
    x, y = (
        helper.make_tensor_value_info(one, TensorProto.FLOAT, ["N", 3])
        for one in ("v0", f"v{len(nodes)}")
    )
    graph = helper.make_graph(nodes, "chain", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def details(page: Browser) -> str:
    """Return the text next to the graph."""
    return page.page.locator(".graph-details").inner_text()


def test_a_small_model_is_drawn_whole(page: Browser, tmp_path: Path) -> None:
    """Each node; the one that is clicked with its weights, attributes and provider."""
    page.page.goto(drawn(MODELS / "digits/1/model.onnx", tmp_path))
    page.page.locator(".node", has_text="Conv").first.click()
    said = details(page)
    assert "runs on cpu" in said
    assert "weight FP32 [16, 1, 3, 3]" in said
    assert "kernel_shape: [3, 3]" in said
    boxes = [one.bounding_box() for one in page.page.locator(".node rect").all()]
    assert len(boxes) == 10 + 2
    tops = sorted(box["y"] for box in boxes if box)
    assert min(lower - upper for upper, lower in pairwise(tops)) > 20
    page.page.keyboard.press("+")
    page.page.get_by_role("searchbox").fill("Softmax")
    page.page.keyboard.press("Enter")
    assert "Softmax" in details(page)
    assert page.complaints == []


def test_what_repeats_is_folded(page: Browser, tmp_path: Path) -> None:
    """Layers are one box each, until one is unfolded."""
    path = onnx_models.save(layers("Relu", "Tanh", "Sigmoid", "Neg", times=20), tmp_path / "m.onnx")
    page.page.goto(drawn(path, tmp_path))
    assert page.page.locator(".node").count() == 20 + 2
    page.page.locator(".node.block").nth(3).click()
    page.page.get_by_text("Unfold").click()
    assert page.page.locator(".node").count() == 19 + 4 + 2
    page.page.get_by_label("fold repeated blocks").uncheck()
    assert page.page.locator(".node").count() == 80 + 2


def test_the_node_that_mixes_rows_is_marked(page: Browser, tmp_path: Path) -> None:
    """The mark has the reason, and the folded layer around the node has a mark as well."""
    model = layers("Relu", "Tanh", "Sigmoid", "LpNormalization", times=20)
    for node in model.graph.node[3::4]:
        node.attribute.append(helper.make_attribute("axis", 0))
    page.page.goto(drawn(onnx_models.save(model, tmp_path / "m.onnx"), tmp_path))
    assert "LpNormalization '3'" in details(page)
    expect(page.page.locator(".node.block .mark")).to_have_text(["mixes rows inside"])
    page.page.get_by_role("button", name="Show LpNormalization").click()
    marked = page.page.locator(".node.marked")
    expect(marked.locator(".mark")).to_have_text("mixes rows")
    assert "LpNormalization '3'" in marked.locator("title").inner_html()
    assert page.complaints == []


def test_subgraphs_are_opened(page: Browser, tmp_path: Path) -> None:
    """A button of the node opens its subgraph, and the path above leads back."""
    path = onnx_models.save(onnx_models.loop(), tmp_path / "m.onnx")
    page.page.goto(drawn(path, tmp_path))
    outside = page.page.locator(".node").count()
    page.page.locator(".node", has_text="Loop").click()
    page.page.get_by_role("button", name="Open Loop").click()
    assert page.page.locator(".graph-path button").count() == 2
    page.page.locator(".graph-path button").first.click()
    assert page.page.locator(".node").count() == outside


def test_twelve_thousand_nodes_open(page: Browser, tmp_path: Path) -> None:
    """A larger model reports the nodes it leaves out; all others are shown and found."""
    operators = [("Relu", "Tanh", "Sigmoid", "Neg", "Abs")[n * n % 7 % 5] for n in range(12_100)]
    path = onnx_models.save(layers(*operators), tmp_path / "m.onnx")
    done = run("inspect", str(path), "--html", str(tmp_path / "graph.html"))
    assert done.exit_code == OK, done.stderr
    assert "not drawn: 100 nodes" in done.stdout
    page.page.goto((tmp_path / "graph.html").as_uri())
    page.page.get_by_label("fold repeated blocks").uncheck()
    assert page.page.locator(".node").count() == 12_002
    page.page.get_by_role("searchbox").fill("v11000")
    page.page.keyboard.press("Enter")
    assert "v11000" in details(page)


def test_what_a_model_says_is_text(page: Browser, tmp_path: Path) -> None:
    """Names that are tags and scripts are shown as they are, and nothing else runs."""
    model = layers("Relu", "Tanh", name=HOSTILE)
    model.graph.node[0].doc_string = HOSTILE
    model.graph.input[0].name = model.graph.node[0].input[0] = HOSTILE
    path = onnx_models.save(model, tmp_path / "m.onnx")
    page.page.goto(drawn(path, tmp_path))
    page.page.locator(".node", has_text="Relu").click()
    assert HOSTILE in details(page)
    assert page.smuggle() == "script-src-elem"
    assert len(page.violations) == 1
