"""Make converters write trees that decide exactly as the source does, for FP32 numbers.

scikit-learn and LightGBM have FP64 thresholds; ONNX's trees have FP32. A threshold rounded to the
nearest FP32 may reach a value, which then goes the other way. Rounded down, every FP32 value goes
the same way. skl2onnx rounds down for some estimators only, and omits the direction of missing
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np

CONVERTERS = tuple(
    f"skl2onnx.operator_converters.{name}"
    for name in ("decision_tree", "gradient_boosting", "isolation_forest", "random_forest")
)
ADDING_TREES = (
    "add_tree_to_attribute_pairs",
    "add_tree_to_attribute_pairs_hist_gradient_boosting",
)


@contextmanager
def exact_trees() -> Iterator[None]:
    """Make skl2onnx and onnxmltools write exact trees inside the block."""
    import onnx.helper

    with ExitStack() as patches:
        for module in (onnx.helper, import_module("skl2onnx.common._container")):
            patches.enter_context(patch.object(module, "make_node", _rounding(module.make_node)))
        for converter in CONVERTERS:
            module = import_module(converter)
            for name in ADDING_TREES:
                if add_tree := getattr(module, name, None):
                    patches.enter_context(patch.object(module, name, _exactly(add_tree)))
        yield


def round_down(values: Sequence[float]) -> list[float]:
    """Return the largest FP32 numbers that do not exceed `values`."""
    exact = np.asarray(values, np.float64)
    rounded = exact.astype(np.float32)
    above = rounded.astype(np.float64) > exact
    lower = np.nextafter(rounded, np.float32(-np.inf))
    return [float(one) for one in np.where(above, lower, rounded)]


def _rounding(make_node: Callable[..., Any]) -> Callable[..., Any]:
    def make_exact_node(op_type: str, *arguments: Any, **attributes: Any) -> Any:
        if op_type.startswith("TreeEnsemble") and "nodes_values" in attributes:
            attributes["nodes_values"] = list(attributes["nodes_values"])
            _round_down(attributes, 0)
        return make_node(op_type, *arguments, **attributes)

    return make_exact_node


def _round_down(attributes: dict[str, Any], start: int) -> None:
    """Round down thresholds of "<=" comparisons, from place `start`."""
    values, modes = attributes["nodes_values"], attributes["nodes_modes"]
    for place, lower in enumerate(round_down(values[start:]), start):
        if modes[place] in {"BRANCH_LEQ", b"BRANCH_LEQ"}:
            values[place] = lower


def _exactly(add_tree: Callable[..., None]) -> Callable[..., None]:
    def add_exact_tree(
        attributes: dict[str, list[Any]], is_classifier: bool, tree: Any, *rest: Any, **named: Any
    ) -> None:
        before = len(attributes["nodes_modes"])
        add_tree(attributes, is_classifier, tree, *rest, **named)
        _round_down(attributes, before)
        left = getattr(tree, "missing_go_to_left", None)
        if left is not None and len(attributes["nodes_modes"]) - before == len(left):
            attributes["nodes_missing_value_tracks_true"][before:] = [int(one) for one in left]

    return add_exact_tree
