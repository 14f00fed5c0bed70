"""Verdicts on models: reported models, and the cases learned from them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cohort.model_file.graphs import GraphInput
from cohort.model_file.model import parse_model
from cohort.row_independence import NodePlace, OutputRows, RowKind, RowVerdict, prove_rows
from cohort.row_independence.verdict import guess_rows
from tests import onnx_models

F, L, B, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING

Value = tuple[str, int, Sequence[int | str | None] | None]


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node whose inputs and outputs are separated by spaces; "-" is one that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(
        operator, names, outputs.split(), name=outputs.split(maxsplit=1)[0], **attributes
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: str = "y",
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 20,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_empty_tensor_value_info(name) for name in outputs.split()],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in (weights or {}).items()
        ],
    )
    domains = (("", opset), ("ai.onnx.ml", 3), ("com.microsoft", 1), ("tests", 1))
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*one) for one in domains], ir_version=10
    )


def prove(made: onnx.ModelProto, **limits: Any) -> RowVerdict:
    return prove_rows(parse_model(memoryview(made.SerializeToString()), 10**19).graphs, **limits)


X: Value = ("x", F, ["N", 4])
W = np.ones((4, 3), np.float32)
LISTS: Mapping[str, Any] = {
    name: np.array(value)
    for name, value in {
        "zero": [0], "one": [1], "last": [-1], "ends": [1 << 40], "two": [2], "minus": [-1, 3],
    }.items()
}  # fmt: skip


class Case(NamedTuple):
    """A model, its verdict, and the node that is named."""

    name: str
    model: onnx.ModelProto
    kind: RowKind
    node: str = ""


INDEPENDENT = (
    Case(
        "mlp",
        model([node("MatMul", "x w", "h"), node("Relu", "h", "y")], [X], "y", {"w": W}),
        RowKind.PROVEN,
    ),
    Case(
        "names of the batch differ per input",
        model([node("Add", "a b", "y")], [("a", F, ["unk_1", 3]), ("b", F, ["unk_2", 3])]),
        RowKind.PROVEN,
    ),
    Case(
        "attention folds heads into rows",
        model(
            [
                node("Reshape", "x heads", "h"),
                node("Transpose", "h", "t", perm=[0, 2, 1, 3]),
                node("Reshape", "t merged", "m"),
                node("Transpose", "m", "k", perm=[0, 2, 1]),
                node("MatMul", "m k", "s"),
                node("Softmax", "s", "p"),
                node("MatMul", "p m", "c"),
                node("Reshape", "c apart", "a"),
                node("Transpose", "a", "b", perm=[0, 2, 1, 3]),
                node("Reshape", "b back", "y"),
            ],
            [("x", F, ["N", 5, 8])],
            "y",
            {
                "heads": np.array([-1, 5, 2, 4]),
                "merged": np.array([-1, 5, 4]),
                "apart": np.array([-1, 2, 5, 4]),
                "back": np.array([-1, 5, 8]),
            },
        ),
        RowKind.PROVEN,
    ),
    Case(
        "shapes computed as exporters do",
        model(
            [
                node("Shape", "x", "s"),
                node("Gather", "s zero", "n"),
                node("Gather", "s one", "t"),
                node("Mul", "n t", "m"),
                node("Concat", "m last", "c", axis=0),
                node("Reshape", "x c", "h"),
                node("MatMul", "h w", "z"),
                node("Concat", "n t last", "d", axis=0),
                node("Reshape", "z d", "y"),
            ],
            [("x", F, ["batch", "time", 4])],
            "y",
            {"w": W, **LISTS},
        ),
        RowKind.PROVEN,
    ),
    Case(
        "each row picks its own token",
        model(
            [
                node("ArgMax", "ids", "place", axis=1, keepdims=0),
                node("Shape", "x", "s"),
                node("Gather", "s first", "n"),
                node("Range", "first n step", "rows"),
                node("Unsqueeze", "rows last", "r"),
                node("Unsqueeze", "place last", "p"),
                node("Concat", "r p", "index", axis=-1),
                node("GatherND", "x index", "y"),
            ],
            [("x", F, ["N", "T", 4]), ("ids", L, ["N", "T"])],
            "y",
            {"first": np.int64(0), "step": np.int64(1), **LISTS},
        ),
        RowKind.PROVEN,
    ),
    Case(
        "each row picks its own token in merged rows",
        model(
            [
                node("ArgMax", "ids", "place", axis=1, keepdims=0),
                node("Shape", "x", "s"),
                node("Split", "s", "n t c", num_outputs=3),
                node("Squeeze", "n", "rows"),
                node("Range", "first rows step", "r"),
                node("Mul", "r t", "start"),
                node("Add", "place start", "index"),
                node("Flatten", "x", "merged", axis=2),
                node("Gather", "merged index", "y"),
            ],
            [("x", F, ["N", "T", 4]), ("ids", L, ["N", "T"])],
            "y",
            {"first": np.int64(0), "step": np.int64(1)},
        ),
        RowKind.PROVEN,
    ),
    Case(
        "columns that are picked, and joined again",
        model(
            [
                node("ArrayFeatureExtractor", "x one", "a", domain="ai.onnx.ml"),
                node("ArrayFeatureExtractor", "x two", "b", domain="ai.onnx.ml"),
                node("Reshape", "a column", "c"),
                node("Reshape", "b column", "d"),
                node("Concat", "c d", "y", axis=1),
            ],
            [X],
            "y",
            {"column": np.array([-1, 1]), **LISTS},
        ),
        RowKind.PROVEN,
    ),
    Case(
        "zeros in the shape of the rows",
        model(
            [node("Shape", "x", "s"), node("Expand", "o s", "z"), node("Where", "m o z", "y")],
            [X, ("m", B, ["N", 4])],
            "y",
            {"o": np.float32(0)},
        ),
        RowKind.PROVEN,
    ),
    Case(
        "text pipeline whose padding is not counted",
        model(
            [
                node(
                    "Tokenizer",
                    "x",
                    "words",
                    domain="com.microsoft",
                    mark=0,
                    pad_value="#",
                    separators=[" "],
                    mincharnum=1,
                ),
                node(
                    "TfIdfVectorizer",
                    "words",
                    "y",
                    mode="TF",
                    min_gram_length=1,
                    max_gram_length=1,
                    max_skip_count=0,
                    ngram_counts=[0],
                    ngram_indexes=[0, 1],
                    pool_strings=["a", "b"],
                ),
            ],
            [("x", S, ["N"])],
        ),
        RowKind.PROVEN,
    ),
)

MIXING = (
    Case(
        "scaled by the batch's own range",
        model([node("ReduceMin", "x", "low", keepdims=0), node("Sub", "x low", "y")], [X]),
        RowKind.REFUTED,
        "ReduceMin 'low'",
    ),
    Case(
        "dynamic quantization",
        model([node("DynamicQuantizeLinear", "x", "q s z"), node("Cast", "q", "y", to=F)], [X]),
        RowKind.REFUTED,
        "DynamicQuantizeLinear 'q'",
    ),
    Case(
        "as wide as the text with the most words",
        model([node("StringSplit", "x", "y count")], [("x", S, ["N"])]),
        RowKind.REFUTED,
        "StringSplit 'y'",
    ),
    Case(
        "padding that is counted",
        model(
            [
                node(
                    "Tokenizer",
                    "x",
                    "words",
                    domain="com.microsoft",
                    mark=0,
                    pad_value="#",
                    separators=[" "],
                    mincharnum=1,
                ),
                node(
                    "TfIdfVectorizer",
                    "words",
                    "y",
                    mode="TF",
                    min_gram_length=1,
                    max_gram_length=1,
                    max_skip_count=0,
                    ngram_counts=[0],
                    ngram_indexes=[0, 1],
                    pool_strings=["#", "b"],
                ),
            ],
            [("x", S, ["N"])],
        ),
        RowKind.REFUTED,
        "TfIdfVectorizer 'y'",
    ),
    Case(
        "rows that are found by their contents",
        model(
            [
                node("NonZero", "x", "places"),
                node("Gather", "places first", "rows"),
                node("Gather", "x rows", "y"),
            ],
            [X],
            "y",
            {"first": np.int64(0)},
        ),
        RowKind.REFUTED,
        "NonZero 'places'",
    ),
    Case(
        "the number of rows is a factor",
        model(
            [
                node("Shape", "x", "s"),
                node("Gather", "s first", "n"),
                node("Cast", "n", "f", to=F),
                node("Mul", "x f", "y"),
            ],
            [X],
            "y",
            {"first": np.int64(0)},
        ),
        RowKind.REFUTED,
        "Mul 'y'",
    ),
    Case(
        "a constant for three rows",
        model([node("Add", "x three", "y")], [X], "y", {"three": np.ones((3, 4), np.float32)}),
        RowKind.REFUTED,
        "Add 'y'",
    ),
    Case(
        "squeezed where there is one row",
        model([node("Squeeze", "x", "y")], [("x", F, ["N", 1])]),
        RowKind.REFUTED,
        "Squeeze 'y'",
    ),
    Case(
        "one branch for the whole run",
        model(
            [
                node("ReduceMax", "x", "most", keepdims=0),
                node("Less", "most half", "c"),
                node(
                    "If",
                    "c",
                    "y",
                    then_branch=helper.make_graph(
                        [node("Neg", "x", "t")], "t", [], [helper.make_empty_tensor_value_info("t")]
                    ),
                    else_branch=helper.make_graph(
                        [node("Relu", "x", "e")],
                        "e",
                        [],
                        [helper.make_empty_tensor_value_info("e")],
                    ),
                ),
            ],
            [X],
            "y",
            {"half": np.float32(0.5)},
        ),
        RowKind.REFUTED,
        "ReduceMax 'most'",
    ),
    Case(
        "softmax over all axes, as it was before opset 13",
        model([node("Softmax", "x", "y", axis=0)], [X], opset=11),
        RowKind.REFUTED,
        "Softmax 'y'",
    ),
    Case(
        "state for one row",
        model(
            [node("GRU", "x w r - - h", "y")],
            [("x", F, ["T", "N", 4])],
            "y",
            {
                "w": np.ones((1, 6, 4), np.float32),
                "r": np.ones((1, 6, 2), np.float32),
                "h": np.ones((1, 1, 2), np.float32),
            },
        ),
        RowKind.REFUTED,
        "GRU 'y'",
    ),
    Case(
        "the diagonal of all rows",
        model(
            [
                node("Shape", "x", "s"),
                node("Gather", "s first", "n"),
                node("Range", "first n step", "r"),
                node("Unsqueeze", "r last", "c"),
                node("Concat", "c c", "index", axis=-1),
                node("GatherND", "x index", "y"),
            ],
            [("x", F, ["N", 9])],
            "y",
            {"first": np.int64(0), "step": np.int64(1), **LISTS},
        ),
        RowKind.REFUTED,
        "GatherND 'y'",
    ),
)

OTHERS = (
    Case(
        "an operator nobody knows",
        model([node("Op", "x", "y", domain="tests")], [X]),
        RowKind.UNKNOWN,
        "tests.Op 'y'",
    ),
    Case(
        "random numbers",
        model([node("RandomNormalLike", "x", "r"), node("Add", "x r", "y")], [X]),
        RowKind.RANDOM,
        "RandomNormalLike 'r'",
    ),
    Case(
        "dropout in training mode",
        model(
            [node("Dropout", "x ratio on", "y")],
            [X],
            "y",
            {"ratio": np.float32(0.5), "on": np.bool_(True)},
        ),
        RowKind.RANDOM,
        "Dropout 'y'",
    ),
    Case("two rows, no more", onnx_models.fixed_rows(), RowKind.FIXED),
    Case(
        "one image of any width",
        model([node("Softmax", "x", "y")], [("x", F, [1, "W"])]),
        RowKind.FIXED,
    ),
    Case("no inputs", onnx_models.no_inputs(), RowKind.FIXED),
    Case(
        "a flag that is neither 0 nor 1",
        model([node("ReduceMax", "x", "y", axes=[1], keepdims=-1)], [X], opset=13),
        RowKind.UNKNOWN,
        "ReduceMax 'y'",
    ),
)


@pytest.mark.parametrize("case", [*INDEPENDENT, *MIXING, *OTHERS], ids=lambda case: case.name)
def test_verdicts_name_the_node(case: Case) -> None:
    """A model is proven, or the first node that prevents the proof is named."""
    verdict = prove(case.model)
    assert (verdict.kind, verdict.node) == (case.kind, case.node)
    assert bool(verdict.reason) == (case.kind is not RowKind.PROVEN)
    assert str(verdict)


def test_rows_are_found_along_other_axes() -> None:
    """They are found in a network that takes time first, and a state with rows in the middle."""
    weights = {"w": np.ones((1, 8, 4), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    inputs: list[Value] = [("x", F, ["T", "N", 4]), ("h", F, [1, "N", 2]), ("c", F, [1, "N", 2])]
    verdict = prove(model([node("LSTM", "x w r - - h c", "y h2 c2")], inputs, "y h2", weights))
    assert verdict.kind is RowKind.PROVEN
    assert verdict.inputs == {"x": 1, "h": 1, "c": 1}
    assert verdict.outputs == {"y": OutputRows(2), "h2": OutputRows(1)}


def test_inputs_that_all_rows_share_are_named() -> None:
    """A threshold has no rows: requests with the same one may share a run."""
    verdict = prove(model([node("Less", "x limit", "y")], [X, ("limit", F, [])]))
    assert verdict.kind is RowKind.SHARED
    assert verdict.inputs == {"x": 0, "limit": None}


def test_the_node_named_is_that_for_which_most_inputs_have_rows() -> None:
    """Other nodes may prevent guesses that go farther."""
    nodes = [node("DynamicQuantizeLinear", "x", "q s z"), node("Cast", "q", "f", to=F)]
    verdict = prove(model([*nodes, node("Add", "f v", "y")], [X, ("v", F, ["M", 4])]))
    assert (verdict.kind, verdict.node) == (RowKind.REFUTED, "DynamicQuantizeLinear 'q'")


def test_outputs_with_several_entries_a_row_are_told() -> None:
    """Five crops of an image make fifteen entries for three rows."""
    shape = {"shape": np.array([-1, 4])}
    verdict = prove(model([node("Reshape", "x shape", "y")], [("x", F, ["N", 5, 4])], "y", shape))
    assert verdict.kind is RowKind.PROVEN
    assert verdict.outputs == {"y": OutputRows(0, 5)}


def test_sizes_of_one_name_are_taken_as_equal_where_that_is_needed() -> None:
    """The verdict contains it, so that requests can be checked for it."""
    inputs = [("x", F, ["N", "T"]), ("mask", F, ["N", "T"])]
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "t"),
        node("Concat", "last t", "c", axis=0),
        node("Reshape", "mask c", "m"),
        node("Add", "x m", "y"),
    ]
    verdict = prove(model(nodes, inputs, "y", LISTS))
    assert (verdict.kind, verdict.equal_sizes) == (RowKind.PROVEN, True)


def test_each_branch_that_can_be_taken_counts() -> None:
    """One that a shape rules out does not."""

    def branch(operator: str, **attributes: Any) -> onnx.GraphProto:
        made = [node(operator, "x", f"{operator}.y", **attributes)]
        return helper.make_graph(
            made, operator, [], [helper.make_empty_tensor_value_info(f"{operator}.y")]
        )

    def with_condition(nodes: Sequence[onnx.NodeProto], inputs: Sequence[Value]) -> RowVerdict:
        choice = node(
            "If", "c", "y", then_branch=branch("Relu"),
            else_branch=branch("Softmax", axis=0),
        )  # fmt: skip
        return prove(model([*nodes, choice], inputs, "y", {"four": np.array([4]), **LISTS}))

    by_shape = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "t"),
        node("Equal", "t four", "e"),
        node("Squeeze", "e", "c"),
    ]
    assert with_condition(by_shape, [X]).kind is RowKind.PROVEN
    told = with_condition([], [X, ("c", B, [])])
    assert (told.kind, told.node) == (RowKind.REFUTED, "Softmax 'Softmax.y'")


def test_a_loop_that_carries_rows_is_followed() -> None:
    """It is followed for the file's turns; one that ends when all rows have ended mixes them."""

    def looped(ends: Sequence[onnx.NodeProto]) -> RowVerdict:
        body = helper.make_graph(
            [node("Relu", "carried", "next"), *ends],
            "body",
            [
                helper.make_tensor_value_info("i", L, []),
                helper.make_tensor_value_info("go", B, []),
                helper.make_tensor_value_info("carried", F, None),
            ],
            [helper.make_empty_tensor_value_info(name) for name in ("goes", "next", "next")],
        )  # fmt: skip
        weights = {"five": np.int64(5), "yes": np.bool_(True), "half": np.float32(0.5)}
        return prove(model([node("Loop", "five yes x", "y all", body=body)], [X], "y all", weights))

    verdict = looped([node("Identity", "go", "goes")])
    assert verdict.kind is RowKind.PROVEN
    assert verdict.outputs == {"y": OutputRows(0), "all": OutputRows(1)}
    ended = looped(
        [node("ReduceMax", "next", "most", keepdims=0), node("Less", "most half", "goes")]
    )
    assert (ended.kind, ended.node) == (RowKind.REFUTED, "Loop 'y'")


def test_functions_are_followed_with_their_attributes() -> None:
    """Attributes come from the caller, or from their defaults; an omitted input stays omitted."""
    softmax = node("Softmax", "v", "p")
    softmax.attribute.add(name="axis", ref_attr_name="along", type=onnx.AttributeProto.INT)
    function = helper.make_function(
        "tests", "Scores", ["v", "limit"], ["r"], [softmax, node("Clip", "p limit", "r")],
        [helper.make_opsetid("", 20)], ["along"],
    )  # fmt: skip

    def called(along: int) -> RowVerdict:
        made = model([node("Scores", "x", "y", domain="tests", along=along)], [X])
        made.functions.append(function)
        return prove(made)

    assert called(1).kind is RowKind.PROVEN
    assert (called(0).kind, called(0).node) == (RowKind.REFUTED, "Softmax 'p'")


@pytest.mark.parametrize("nodes", [0, 10, 1000])
def test_a_graph_that_is_too_large_is_unknown(nodes: int) -> None:
    """The limit is a number of visited nodes."""
    chain = [node("Relu", "x" if at == 0 else f"v{at - 1}", f"v{at}") for at in range(2000)]
    verdict = prove(model(chain, [X], "v1999"), max_nodes=nodes)
    assert (verdict.kind, verdict.reason) == (RowKind.UNKNOWN, "the graph is too large to follow")
    assert prove(model(chain, [X], "v1999"), max_nodes=2000).kind is RowKind.PROVEN


def test_a_busy_machine_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the time that the analysis computes, not that of the clock."""
    hours = itertools.count(step=3600)
    monkeypatch.setattr("time.monotonic", lambda: next(hours))
    chain = [node("Relu", "x" if at == 0 else f"v{at - 1}", f"v{at}") for at in range(200)]
    assert prove(model(chain, [X], "v199")).kind is RowKind.PROVEN
    assert prove(model(chain, [X], "v199"), max_seconds=0.0).kind is RowKind.UNKNOWN


def test_hostile_graphs_end() -> None:
    """Sizes may square again and again, and functions may call each other two at a time."""
    squares = [node("Shape", "x", "s0")]
    squares += [node("Mul", f"s{at} s{at}", f"s{at + 1}") for at in range(60)]
    grown = model([*squares, node("Reshape", "x s60", "y")], [("x", F, ["N", "A", "B", "C"])])
    assert prove(grown).kind in (RowKind.REFUTED, RowKind.UNKNOWN)
    doubled = model([node("F39", "x", "y", domain="tests")], [X])
    doubled.functions.extend(onnx_models.doubling_functions("tests", 40))
    assert prove(doubled, max_nodes=5000).reason == "the graph is too large to follow"
    deep = model([node("F900", "x", "y", domain="tests")], [X])
    deep.functions.extend(onnx_models.doubling_functions("tests", 901, calls=1))
    assert prove(deep).kind in (RowKind.PROVEN, RowKind.UNKNOWN)


def test_a_name_outside_does_not_stand_for_what_is_computed_later() -> None:
    """A graph's own values hide those outside, also before the node that makes them."""
    branch = helper.make_graph(
        [node("Relu", "w", "r"), node("Softmax", "x", "w", axis=0)],
        "branch", [], [helper.make_empty_tensor_value_info("r")],
    )  # fmt: skip
    choice = node("If", "c", "y", then_branch=branch, else_branch=branch)
    verdict = prove(model([choice], [X, ("c", B, [])], "y", {"w": W}))
    assert verdict.kind is RowKind.UNKNOWN


def test_a_function_that_hides_an_operator_is_unknown() -> None:
    """The runtime may use either of the two."""
    made = model([node("Relu", "x", "y")], [X])
    inner = node("Softmax", "v", "r", axis=0)
    made.functions.append(
        helper.make_function("", "Relu", ["v"], ["r"], [inner], [helper.make_opsetid("", 20)])
    )
    assert prove(made).kind is RowKind.UNKNOWN


def test_of_verdicts_for_shared_inputs_the_one_with_most_rows_counts() -> None:
    """Time may be taken for rows, with all else shared: right, and of no use to callers."""
    time_first = model(
        [node("Add", "x state", "s"), node("Mul", "s threshold", "y")],
        [
            ("x", F, ["time", "batch", 4]),
            ("state", F, [1, "batch", 4]),
            ("threshold", F, []),
        ],
    )
    verdict = prove(time_first)
    assert verdict.kind is RowKind.SHARED
    assert verdict.inputs == {"x": 1, "state": 1, "threshold": None}


def test_a_verdict_finds_its_node_in_the_graph() -> None:
    """It finds it by name and by index, constants included."""
    one = helper.make_node("Constant", [], ["one"], value_float=1.0)
    low = node("ReduceMax", "z", "low", keepdims=0)
    assert prove(model([one, node("Add", "x one", "z"), low], [X], "low")).place == NodePlace(
        (2,), "low"
    )


@pytest.mark.parametrize("first", ["then_branch", "else_branch"])
@pytest.mark.parametrize("mixing", ["then_branch", "else_branch"])
def test_a_verdict_finds_its_node_in_a_branch(first: str, mixing: str) -> None:
    """It finds it by the index of the graph in its node, which follows the order in the file."""
    low = node("ReduceMax", "x", "low", keepdims=0)
    branches = {
        name: helper.make_graph(
            [node("Relu", "x", "same"), *([low] if name == mixing else [])],
            name,
            [],
            [helper.make_empty_tensor_value_info("low" if name == mixing else "same")],
        )
        for name in ("then_branch", "else_branch")
    }
    chosen = helper.make_node("If", ["c"], ["y"])
    for name in sorted(branches, key=lambda name: name != first):
        chosen.attribute.append(helper.make_attribute(name, branches[name]))
    found = prove(model([node("Relu", "x", "z"), chosen], [X, ("c", B, [])]))
    assert found.place == NodePlace((1, int(first != mixing), 1), "low")


def test_a_verdict_finds_its_node_in_a_function() -> None:
    """The body comes after the graphs of the node that calls it, at any depth."""
    inner = [node("Relu", "a", "b"), node("ReduceMax", "b", "c", keepdims=0)]
    outer = [node("Relu", "a", "b"), node("Inner", "b", "d", domain="tests")]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("tests", 1)]
    made = model([node("Relu", "x", "z"), node("Outer", "z", "y", domain="tests")], [X])
    made.functions.append(helper.make_function("tests", "Inner", ["a"], ["c"], inner, opsets))
    made.functions.append(helper.make_function("tests", "Outer", ["a"], ["d"], outer, opsets))
    assert prove(made).place == NodePlace((1, 0, 1, 0, 1), "c")


def test_a_verdict_without_a_node_has_no_place() -> None:
    """These are a proven one, one for an input, and one for an output."""
    assert prove(model([node("Relu", "x", "y")], [X])).place == NodePlace()
    assert prove(model([node("Relu", "x", "y")], [("x", F, None)])).place == NodePlace()
    assert prove(model([node("Shape", "x", "y")], [X])).place == NodePlace()


def test_a_node_that_no_output_needs_may_end_a_run() -> None:
    """ONNX Runtime runs it all the same, and here it fails for any number of rows but 1 and 3."""
    relu = node("Relu", "x", "y")
    weights = {"three": np.ones((3, 4), np.float32)}
    unnamed = helper.make_node("Add", ["x", "three"], ["z", ""], name="z")
    clip = helper.make_node("Clip", ["x", "", ""], ["y"])
    for nodes in (
        [relu, node("Add", "x three", "z")],
        [relu, node("Unheard", "x", "z", domain="tests")],
        [unnamed, clip],  # an output and inputs that are left out have the same name, none
    ):
        verdict = prove(model(nodes, [X], "y", weights))
        assert (verdict.kind, verdict.node.split()[-1]) == (RowKind.UNKNOWN, "'z'")
    assert prove(model([relu, node("Neg", "x", "z")], [X])).kind is RowKind.PROVEN


def test_nodes_may_be_in_any_order() -> None:
    """Some converters write those of the main graph so."""
    branch = helper.make_graph(
        [node("Relu", "h", "r")], "branch", [], [helper.make_empty_tensor_value_info("r")]
    )
    choice = node("If", "yes", "y", then_branch=branch, else_branch=branch)
    nodes = [choice, node("MatMul", "x w", "h")]
    assert prove(model(nodes, [X], "y", {"w": W, "yes": np.bool_(True)})).kind is RowKind.PROVEN
    mixed = [node("ReduceMax", "h", "y", keepdims=0), node("MatMul", "x w", "h")]
    assert prove(model(mixed, [X], "y", {"w": W})).place == NodePlace((0,), "y")
    circle = [node("Add", "x z", "y"), node("Relu", "y", "z")]
    assert prove(model(circle, [X])).kind is RowKind.UNKNOWN


@pytest.mark.parametrize(
    "last",
    [
        node("Add", "range three", "z"),
        node("Gather", "range two", "z"),
        node("Gather", "w range", "z"),
        node("Reshape", "range sizes", "z"),
        node("Squeeze", "range zero", "z"),
    ],
    ids=lambda last: last.op_type,
)
def test_row_numbers_that_fit_some_numbers_of_rows_only_prove_nothing(
    last: onnx.NodeProto,
) -> None:
    """They fail with others, even if only the shape of their result is used."""
    made = [
        node("Shape", "x", "s", start=0, end=1),
        node("Squeeze", "s", "n"),
        node("Range", "first n step", "range"),
    ]
    used = [node("Size", "z", "size"), node("Cast", "size", "f", to=F), node("Mul", "x f", "y")]
    weights = {
        "first": np.int64(0), "step": np.int64(1), "three": np.arange(3), "sizes": np.array([3]),
        "w": W, **LISTS,
    }  # fmt: skip
    assert prove(model([*made, last, *used], [X], "y", weights)).kind is RowKind.REFUTED


@pytest.mark.parametrize(("limit", "kind"), [(5, RowKind.PROVEN), (1, RowKind.UNKNOWN)])
def test_a_length_that_is_cut_to_a_limit_is_the_length_where_they_meet(
    limit: int, kind: RowKind
) -> None:
    """GPT-2 adds positions so, and then cuts by the length. One position would fit any length."""
    nodes = [
        node("Shape", "x", "s", start=1, end=2),
        node("Squeeze", "s", "t"),
        node("Min", "t limit", "m"),
        node("Range", "first m step", "places"),
        node("Gather", "w places", "p"),
        node("Add", "p x", "z"),
        node("Add", "p p", "q"),
        node("Add", "z q", "h"),
        node("Concat", "last s four", "sizes", axis=0),
        node("Reshape", "h sizes", "y"),
    ]
    weights = {
        "limit": np.int64(limit), "first": np.int64(0), "step": np.int64(1), "four": np.array([4]),
        "w": np.ones((5, 4), np.float32), **LISTS,
    }  # fmt: skip
    made = model(nodes, [("x", F, ["N", "T", 4])], "y", weights)
    assert prove(made, guesses=[{"x": 0}]).kind is kind


@pytest.mark.parametrize("sizes", [["N", 1], ["N{}", 1], [None, 1], [2, "N"]])
def test_the_work_of_guessing_grows_no_faster_than_the_inputs(
    sizes: list[int | str | None],
) -> None:
    """Each guess names all inputs, and the number of guesses does not grow with the inputs."""

    def names_looked_up(inputs: int) -> int:
        _Name.looked_up = 0
        wide = [
            GraphInput(
                _Name(f"x{at}"),
                shape=tuple(one.format(at) if isinstance(one, str) else one for one in sizes),
            )
            for at in range(inputs)
        ]
        assert list(guess_rows(wide))
        return _Name.looked_up

    assert names_looked_up(1000) <= 12 * names_looked_up(100)


class _Name(str):
    """A name that counts how often it is looked up."""

    __slots__ = ()
    looked_up = 0

    def __hash__(self) -> int:
        _Name.looked_up += 1
        return super().__hash__()
