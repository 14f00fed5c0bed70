"""The graph of a model on the page."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Page, expect

from tests import onnx_models
from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.examples import examples
from tests.playground.test_access import AXE, findings
from tests.playground.visiting import opened

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

HOSTILE = "<img src=x onerror=alert(1)>"


def residual() -> onnx.ModelProto:
    """Return the 175 nodes of a ResNet-50 with few channels; `image` FP32 [N, 3, 64, 64]."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(*shape: int) -> str:
        values = random.random(shape, dtype=np.float32) / max(1, int(np.prod(shape[1:])))
        weights.append(numpy_helper.from_array(values, f"w{len(weights)}"))
        return f"w{len(weights) - 1}"

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [name], name=f"/{name}", **attributes))
        return name

    def convolve(x: str, into: int, out: int, kernel: int, stride: int) -> str:
        x = add(
            "Conv", x, weight(out, into, kernel, kernel),
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
        )  # fmt: skip
        return add("BatchNormalization", x, *(weight(out) for _ in range(4)))

    x = add("Relu", convolve("image", 3, 4, 7, 2))
    x = add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    into = 4
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 4 * 2**stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            y = add("Relu", convolve(x, into, width, 1, 1))
            y = add("Relu", convolve(y, width, width, 3, stride))
            y = convolve(y, width, 4 * width, 1, 1)
            x = convolve(x, into, 4 * width, 1, stride) if block == 0 else x
            x = add("Relu", add("Add", x, y))
            into = 4 * width
    x = add("Flatten", add("GlobalAveragePool", x))
    nodes.append(helper.make_node("Gemm", [x, weight(into, 10), weight(10)], ["logits"], name="fc"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 64, 64])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])
    graph = helper.make_graph(nodes, "residual", [image], [logits], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def hostile() -> onnx.ModelProto:
    """Return a model whose names are tags."""
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, ["N", 3]) for one in "xy")
    node = helper.make_node("Relu", ["x"], ["y"], name=HOSTILE)
    graph = helper.make_graph([node], HOSTILE, [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def mixing() -> onnx.ModelProto:
    """A model with a constant, and a node in a branch that combines rows; `x` FP32 [N, 3]."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        made = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        return helper.make_graph(list(nodes), name, [], [made])

    least = numpy_helper.from_array(np.array(0, np.float32), "least")
    nodes = [
        helper.make_node("Constant", [], ["least"], value=least),
        helper.make_node("Add", ["x", "least"], ["moved"]),
        helper.make_node("ReduceMean", ["moved"], ["mean"], keepdims=0),
        helper.make_node("Less", ["least", "limit"], ["low"]),
        helper.make_node(
            "If",
            ["low"],
            ["y"],
            name="/choose",
            then_branch=branch("then", helper.make_node("Relu", ["moved"], ["kept"])),
            else_branch=branch(
                "else",
                helper.make_node("Neg", ["moved"], ["other"]),
                helper.make_node("CumSum", ["other", "axis"], ["summed"], name="/sum"),
            ),
        ),
    ]
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, ["N", 3]) for one in "xy")
    limit = helper.make_tensor_value_info("limit", TensorProto.FLOAT, [])
    axis = numpy_helper.from_array(np.array(0, np.int64), "axis")
    graph = helper.make_graph(nodes, "mixing", [x, limit], [y], [axis])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A ResNet-50's graph, one of hostile names, one with a subgraph, and the bundled digits."""
    folder = tmp_path_factory.mktemp("graphs")
    models = folder / "models"
    shutil.copytree(MODELS / "digits", models / "digits")
    onnx_models.save(residual(), models / "residual/1/model.onnx")
    onnx_models.save(hostile(), models / "hostile/1/model.onnx")
    onnx_models.save(onnx_models.loop(), models / "loop/1/model.onnx")
    onnx_models.save(mixing(), models / "mixing/1/model.onnx")
    with cohort(models, folder) as started:
        yield started


def graph_of(chromium: Browser, server: Cohort, model: str, version: str = "1") -> Page:
    page = opened(chromium, server, f"/models/{model}/versions/{version}")
    expect(page.locator(".node").first).to_be_visible()
    return page


def boxes(page: Page) -> list[dict[str, float]]:
    """Where the boxes of all nodes are on the screen."""
    found: list[dict[str, float]] = page.evaluate(
        """[...document.querySelectorAll('.node rect')]
            .map(one => one.getBoundingClientRect().toJSON())"""
    )
    return found


@pytest.mark.parametrize("size", [(390, 844), (1280, 900)], ids=["phone", "desk"])
def test_a_resnet_can_be_read(chromium: Browser, server: Cohort, size: tuple[int, int]) -> None:
    """All 175 nodes are drawn with their shapes, in letters of full size, without overlap."""
    assert len(residual().graph.node) == 175
    chromium.page.set_viewport_size({"width": size[0], "height": size[1]})
    page = graph_of(chromium, server, "residual")
    page.get_by_label("fold repeated blocks").uncheck()
    assert page.locator(".node").count() == 175 + 2
    expect(page.locator(".node", has_text="Conv").first).to_contain_text("[N, 4, 32, 32]")
    letters = page.evaluate("document.querySelector('.node text').getBoundingClientRect().height")
    assert letters >= 11
    found = boxes(page)
    for place, one in enumerate(found):
        for other in found[place + 1 :]:
            beside = one["right"] <= other["left"] or other["right"] <= one["left"]
            assert beside or one["bottom"] <= other["top"] or other["bottom"] <= one["top"]
    first = page.get_by_role("button", name="image [N, 3, 64, 64], input").bounding_box()
    canvas = page.locator(".graph-canvas").bounding_box()
    assert first
    assert canvas
    assert canvas["x"] <= first["x"] < canvas["x"] + canvas["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    page.get_by_role("button", name="Fit").click()
    edges = canvas["y"], canvas["y"] + canvas["height"]
    assert all(edges[0] <= one["top"] and one["bottom"] <= edges[1] for one in boxes(page))
    chromium.page.set_viewport_size({"width": 1280, "height": 900})


def test_a_node_tells_all_about_itself(chromium: Browser, server: Cohort) -> None:
    """The details show its device, its values with types, and its attributes."""
    page = opened(chromium, server, "/models/digits")
    page.locator("summary", has_text="Version 1").click()
    page.get_by_role("link", name="Graph of version 1").click()
    details = page.locator(".graph-details")
    known = server.get("/models/digits/versions/1").json()["providers"]["nodes"]
    expect(details).to_contain_text(f"cpu: {known['cpu']} nodes")
    page.locator(".node", has_text="Conv").first.click()
    expect(details).to_contain_text("runs on cpu")
    expect(details).to_contain_text("weight FP32 [16, 1, 3, 3]")
    expect(details).to_contain_text("kernel_shape: [3, 3]")
    expect(details).to_contain_text("FP32 [N, 16, 8, 8]")
    assert chromium.complaints == []


def test_arrows_lead_from_node_to_node(chromium: Browser, server: Cohort) -> None:
    """Down to who takes a value, up to who made it; Tab reaches the graph once."""
    page = graph_of(chromium, server, "residual")
    page.get_by_label("fold repeated blocks").uncheck()
    page.locator(".node[tabindex='0']").focus()
    for name in ("Conv", "BatchNormalization", "Relu", "MaxPool"):
        page.keyboard.press("ArrowDown")
        expect(page.locator(".graph-details h2")).to_have_text(name)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("MaxPool")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".graph-details h2")).to_have_text("MaxPool")
    page.keyboard.press("End")
    expect(page.locator(".graph-details h2")).to_have_text("Output")
    assert page.locator(".node[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    expect(page.locator(".graph-details")).to_contain_text("175 nodes")


def test_a_search_goes_from_hit_to_hit(chromium: Browser, server: Cohort) -> None:
    """The page shows how many hits there are."""
    page = graph_of(chromium, server, "residual")
    page.get_by_label("fold repeated blocks").uncheck()
    page.get_by_role("searchbox").fill("maxpool_")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("3 found")  # itself, and two that take it
    page.get_by_role("searchbox").fill("Gemm")
    page.keyboard.press("Enter")
    expect(page.locator(".graph-details h2")).to_have_text("Gemm")
    expect(page.locator(".node.picked")).to_be_in_viewport()


def test_what_a_graph_says_is_text(chromium: Browser, server: Cohort) -> None:
    """A name that is a tag is shown as it is."""
    page = graph_of(chromium, server, "hostile")
    page.locator(".node", has_text="Relu").click()
    expect(page.locator(".graph-details")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0
    assert chromium.complaints == []


def test_a_subgraph_is_opened(chromium: Browser, server: Cohort) -> None:
    """A button opens the subgraph of a node, and a link returns to the outer graph."""
    page = graph_of(chromium, server, "loop")
    outside = page.locator(".node").count()
    page.locator(".node", has_text="Loop").click()
    page.get_by_role("button", name="Open Loop").click()
    expect(page.get_by_role("navigation", name="Graphs").get_by_role("button")).to_have_count(2)
    page.get_by_role("navigation", name="Graphs").get_by_role("button").first.click()
    assert page.locator(".node").count() == outside


def test_the_node_that_mixes_rows_is_marked(chromium: Browser, server: Cohort) -> None:
    """The node whose graph has it is also marked; each has the reason, and a link to it."""
    page = graph_of(chromium, server, "mixing")
    reason = server.get("/models/mixing/versions/1").json()["batching"]["rows"]["reason"]
    assert "CumSum '/sum'" in reason
    details = page.locator(".graph-details")
    expect(details).to_contain_text(reason)
    holder = page.locator(".node.leads")
    expect(holder).to_have_attribute("aria-label", re.compile("^If.*mixes rows inside"))
    expect(page.locator(".node.marked")).to_have_count(0)
    details.get_by_role("button", name="Show CumSum '/sum'").click()
    marked = page.locator(".node.marked")
    expect(marked).to_have_attribute("aria-label", re.compile("^CumSum.* mixes rows, /sum"))
    expect(marked.locator(".mark")).to_have_text("mixes rows")
    expect(marked.locator("title")).to_have_text(reason)
    expect(marked).to_be_in_viewport()
    expect(details.locator("h2")).to_have_text("CumSum")
    expect(details).to_contain_text(reason)
    assert chromium.complaints == []


def test_no_node_of_a_model_that_mixes_no_rows_is_marked(chromium: Browser, server: Cohort) -> None:
    """The details do not mention rows."""
    page = graph_of(chromium, server, "digits")
    assert page.locator(".mark").count() == 0
    expect(page.locator(".graph-details")).not_to_contain_text("Rows")


def test_a_version_that_is_not_there_is_said(chromium: Browser, server: Cohort) -> None:
    """The page shows the server's error."""
    page = opened(chromium, server, "/models/digits/versions/9")
    expect(page.get_by_role("alert")).to_contain_text("9")
    chromium.complaints.clear()  # the browser reports the status


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: make .npm/npm.stamp")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(chromium: Browser, server: Cohort, scheme: Any) -> None:
    """A view with a chosen node passes."""
    chromium.page.emulate_media(color_scheme=scheme)
    page = graph_of(chromium, server, "digits", "2")
    page.locator(".node", has_text="Conv").first.click()
    assert findings(page) == []
    page = graph_of(chromium, server, "mixing")
    page.get_by_role("button", name="Show CumSum").click()
    assert findings(page) == []
    chromium.page.emulate_media(color_scheme=None)


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck), deadline=None)
@given(links=st.lists(st.lists(st.integers(1, 60), max_size=4), min_size=1, max_size=60))
def test_any_graph_is_laid_out(chromium: Browser, server: Cohort, links: list[list[int]]) -> None:
    """Each node is below its inputs, no two overlap, and every edge is drawn."""
    page = chromium.page
    if "/playground" not in page.url:
        opened(chromium, server)
    nodes: list[dict[str, Any]] = [
        {"op": "Op", "domain": "", "name": "", "in": [one for one in taken if one <= place],
         "out": [place + 1], "attributes": [], "provider": "", "graphs": []}
        for place, taken in enumerate(links)
    ]  # fmt: skip
    values = [["", ""]] + [[f"v{number}", "FP32 [N, 3]"] for number in range(61)]
    graph = {"title": "g", "inputs": [], "outputs": [len(links)], "nodes": nodes, "weights": {},
             "blocks": [], "values": values}  # fmt: skip
    found = page.evaluate(
        """async graph => {
            const base = document.querySelector("script").src.replace("main.js", "");
            const { collect, layOut, HEIGHT } = await import(`${base}graph_layout.js`);
            const items = collect(graph, true, new Set()), edges = layOut(items);
            return {
                items: items.map(({ x, y, width }) =>
                    [x - width / 2, x + width / 2, y, y + HEIGHT]),
                edges: edges.map(({ from, to }) => [from.place, to.place]),
            };
        }""",
        graph,
    )
    wanted = {(taken - 1, place) for place, one in enumerate(nodes) for taken in one["in"]} | {
        (len(links) - 1, len(links))
    }
    assert {tuple(edge) for edge in found["edges"]} == wanted
    items = found["items"]
    assert all(items[upper][3] <= items[lower][2] for upper, lower in wanted)
    for place, (left, right, top, bottom) in enumerate(items):
        for other in items[place + 1 :]:
            apart = right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
            assert apart
