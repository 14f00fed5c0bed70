"""Quantization recipes as data, and the choice of those that suit a model and this processor."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

Method = Literal["minmax", "entropy", "percentile"]

CALIBRATION_METHODS: tuple[Method, ...] = ("minmax", "entropy", "percentile")

Family = Literal["dynamic", "static", "fp16", "int4"]

FAMILIES: tuple[Family, ...] = ("dynamic", "static", "fp16", "int4")


@dataclass(frozen=True, slots=True)
class DynamicRecipe:
    """INT8 weights; each run computes the scale of its activations.

    weights: Datatype of the weights.
    reduce_range: True for 7-bit weights: without VNNI, sums of products of 8 bits overflow.
    excluded: Names of nodes to keep in float; default none.
    """

    weights: Literal["int8", "uint8"]
    reduce_range: bool
    excluded: tuple[str, ...] = ()
    family: Literal["dynamic"] = "dynamic"


@dataclass(frozen=True, slots=True)
class StaticRecipe:
    """INT8 weights by channel and INT8 activations with calibrated scales (QDQ).

    method: Calibration method for activation ranges.
    activations: Datatype of the activations.
    reduce_range: True for 7-bit weights.
    convolutional: True to quantize operators between convolutions as well, not products only.
    excluded: Names of nodes to keep in float; default none.
    """

    method: Method
    activations: Literal["int8", "uint8"]
    reduce_range: bool
    convolutional: bool
    excluded: tuple[str, ...] = ()
    family: Literal["static"] = "static"


@dataclass(frozen=True, slots=True)
class Float16Recipe:
    """Weights and activations in FP16; inputs and outputs keep their datatypes."""

    excluded: tuple[str, ...] = ()
    family: Literal["fp16"] = "fp16"


@dataclass(frozen=True, slots=True)
class Int4Recipe:
    """INT4 weights of matrix products, in blocks with a scale each (MatMulNBits).

    block_size: Weights in a block.
    excluded: Names of nodes to keep in float; default none.
    """

    block_size: int = 32
    excluded: tuple[str, ...] = ()
    family: Literal["int4"] = "int4"


Recipe = DynamicRecipe | StaticRecipe | Float16Recipe | Int4Recipe


def recipe_name(recipe: Recipe) -> str:
    """Return the recipe's name for tables and files, such as "static-minmax"."""
    name = f"static-{recipe.method}" if isinstance(recipe, StaticRecipe) else recipe.family
    return f"{name}-excluding-{len(recipe.excluded)}" if recipe.excluded else name


def excluding(recipe: Recipe, nodes: Sequence[str]) -> Recipe:
    """Return the recipe with `nodes` kept in float."""
    return replace(recipe, excluded=tuple(sorted(nodes)))


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Parts of a model that can be quantized.

    operators: Number of nodes by operator, including subgraphs.
    quantizable: Names of nodes with quantizable weights, in graph order.
    quantizable_bytes: Bytes of those weights.
    weight_bytes: Bytes of all weights.
    """

    operators: Mapping[str, int]
    quantizable: tuple[str, ...]
    quantizable_bytes: int
    weight_bytes: int


def suitable(
    families: Sequence[Family], facts: GraphFacts, methods: Sequence[Method], *, seven_bits: bool
) -> list[Recipe]:
    """Return the recipes of `families` for a model, in the order to try them."""
    convolutional = any(name in facts.operators for name in ("Conv", "ConvTranspose"))
    recipes: list[Recipe] = []
    for family in families:
        if family == "dynamic":
            # ONNX Runtime's ConvInteger is 3 times slower with signed weights.
            weights: Literal["int8", "uint8"] = "uint8" if convolutional else "int8"
            recipes.append(DynamicRecipe(weights, seven_bits))
        elif family == "static":
            activations: Literal["int8", "uint8"] = "int8" if on_arm() else "uint8"
            recipes += [
                StaticRecipe(method, activations, seven_bits, convolutional) for method in methods
            ]
        elif family == "fp16":
            recipes.append(Float16Recipe())
        elif {"MatMul", "Gemm"} & facts.operators.keys():
            recipes.append(Int4Recipe())
    return recipes


def on_arm() -> bool:
    """Return True on ARM, whose kernels prefer signed activations."""
    return platform.machine().lower() in {"arm64", "aarch64"}


@cache
def sums_overflow() -> bool:
    """Return True if sums of INT8 products may overflow: on x86 without VNNI.

    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    if on_arm():
        return False
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True  # not Linux: seven bits are correct on any processor
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return not {"avx512_vnni", "avx_vnni"} & set(flags)
