"""What can be done to a model's weights, as data, and what suits a model and this processor."""

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
    """INT8 weights; each run finds the scale of its activations from what it is given.

    weights: Their datatype.
    reduce_range: Whether weights keep seven bits: without VNNI, sums of products of eight overflow.
    excluded: Names of nodes that stay as they are; default none.
    """

    weights: Literal["int8", "uint8"]
    reduce_range: bool
    excluded: tuple[str, ...] = ()
    family: Literal["dynamic"] = "dynamic"


@dataclass(frozen=True, slots=True)
class StaticRecipe:
    """INT8 weights by channel and INT8 activations, whose scales were found beforehand (QDQ).

    method: How the range of an activation follows from what was seen of it.
    activations: Their datatype.
    reduce_range: Whether weights keep seven bits.
    convolutional: Whether what lies between convolutions is INT8, too; else products alone are.
    excluded: Names of nodes that stay as they are; default none.
    """

    method: Method
    activations: Literal["int8", "uint8"]
    reduce_range: bool
    convolutional: bool
    excluded: tuple[str, ...] = ()
    family: Literal["static"] = "static"


@dataclass(frozen=True, slots=True)
class Float16Recipe:
    """Weights and activations in FP16; inputs and outputs stay as they are."""

    excluded: tuple[str, ...] = ()
    family: Literal["fp16"] = "fp16"


@dataclass(frozen=True, slots=True)
class Int4Recipe:
    """INT4 weights of matrix products, in blocks with a scale each (MatMulNBits).

    block_size: Weights in a block.
    excluded: Names of nodes that stay as they are; default none.
    """

    block_size: int = 32
    excluded: tuple[str, ...] = ()
    family: Literal["int4"] = "int4"


Recipe = DynamicRecipe | StaticRecipe | Float16Recipe | Int4Recipe


def recipe_name(recipe: Recipe) -> str:
    """What it is called in tables and files: "static-minmax"."""
    name = f"static-{recipe.method}" if isinstance(recipe, StaticRecipe) else recipe.family
    return f"{name}-excluding-{len(recipe.excluded)}" if recipe.excluded else name


def excluding(recipe: Recipe, nodes: Sequence[str]) -> Recipe:
    """The same recipe for all but `nodes`."""
    return replace(recipe, excluded=tuple(sorted(nodes)))


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What of a model can be quantized.

    operators: How often each operator occurs, those in subgraphs included.
    quantizable: Names of the nodes whose weights can be, in the order of the graph.
    quantizable_bytes: Of those weights.
    weight_bytes: Of all weights.
    """

    operators: Mapping[str, int]
    quantizable: tuple[str, ...]
    quantizable_bytes: int
    weight_bytes: int


def suitable(
    families: Sequence[Family], facts: GraphFacts, methods: Sequence[Method], *, seven_bits: bool
) -> list[Recipe]:
    """The recipes of `families` for a model, in the order in which they are tried."""
    convolutional = any(name in facts.operators for name in ("Conv", "ConvTranspose"))
    recipes: list[Recipe] = []
    for family in families:
        if family == "dynamic":
            # ONNX Runtime's ConvInteger takes 3 times as long with signed weights.
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
    """Whether the processor is an ARM, whose kernels prefer signed activations."""
    return platform.machine().lower() in {"arm64", "aarch64"}


@cache
def sums_overflow() -> bool:
    """Whether this processor's sums of INT8 products may overflow: x86 without VNNI.

    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    if on_arm():
        return False
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True  # not Linux: seven bits are right everywhere
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return not {"avx512_vnni", "avx_vnni"} & set(flags)
