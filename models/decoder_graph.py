"""Graphs of decoders of Llama's kind, as onnxruntime-genai's builder makes them.

Weights have the names and layouts of Hugging Face's Llama:
`model.layers.0.self_attn.q_proj.weight` is [outputs, inputs].
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
IR_VERSION = 10
CONTRIB = "com.microsoft"
INT4_BLOCK = 32

Array = npt.NDArray[Any]
Weights = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a decoder.

    vocabulary: Tokens; the first dimension of the embeddings.
    width: Values that describe a token between layers.
    layers: Pairs of an attention and a feed-forward part.
    heads, kv_heads: Heads that query, and heads of keys and values.
    head_size: Values in each head; GroupQueryAttention takes multiples of 16.
    inner: Values inside each layer's feed-forward part.
    context: The maximum of tokens of a prompt and its answer.
    tied: True if the embeddings are also the weights of the last layer.
    """

    vocabulary: int = 320
    width: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    inner: int = 64
    context: int = 256
    tied: bool = False
    theta: float = 10_000.0
    epsilon: float = 1e-5

    def weights(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and shape of each weight."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        yield "model.embed_tokens.weight", (self.vocabulary, self.width)
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            yield f"{at}.input_layernorm.weight", (self.width,)
            yield f"{at}.self_attn.q_proj.weight", (queries, self.width)
            yield f"{at}.self_attn.k_proj.weight", (keys, self.width)
            yield f"{at}.self_attn.v_proj.weight", (keys, self.width)
            yield f"{at}.self_attn.o_proj.weight", (self.width, queries)
            yield f"{at}.post_attention_layernorm.weight", (self.width,)
            yield f"{at}.mlp.gate_proj.weight", (self.inner, self.width)
            yield f"{at}.mlp.up_proj.weight", (self.inner, self.width)
            yield f"{at}.mlp.down_proj.weight", (self.width, self.inner)
        yield "model.norm.weight", (self.width,)
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, self.width)


def random_weights(shape: DecoderShape, *, seed: int = 0) -> Weights:
    """Draw FP32 weights whose products keep their inputs' size; norms are 1."""
    chance = np.random.default_rng(seed)
    return {
        name: np.ones(size, np.float32)
        if len(size) == 1
        else chance.standard_normal(size, np.float32) * np.float32(size[1] ** -0.5)
        for name, size in shape.weights()
    }


class GraphParts:
    """Collects the nodes, weights, inputs and outputs of a graph.

    dtype: The type of weights and of tensors between nodes.
    """

    def __init__(self, dtype: npt.DTypeLike = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self.element_type = helper.np_dtype_to_tensor_dtype(self.dtype)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def weight(self, name: str, values: Array) -> str:
        """Add a weight in the graph's type, and return its name."""
        return self.constant(name, np.ascontiguousarray(values, self.dtype))

    def constant(self, name: str, values: Array) -> str:
        """Add an initializer as it is, and return its name."""
        self._weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        self.nodes(kind, inputs, [output], **attributes)
        return output

    def nodes(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        domain: str = "",
        **a: Any,
    ) -> None:
        """Add a node with any number of outputs."""
        made = helper.make_node(kind, inputs, outputs, name=f"/{outputs[0]}", domain=domain, **a)
        self._nodes.append(made)

    def input(self, name: str, element_type: int, dims: Sequence[int | str]) -> str:
        """Add an input of the graph, and return its name."""
        self._inputs.append(helper.make_tensor_value_info(name, element_type, dims))
        return name

    def output(self, name: str, dims: Sequence[int | str]) -> None:
        """Make a tensor an output of the graph."""
        self._outputs.append(helper.make_tensor_value_info(name, self.element_type, dims))

    def model(self, *domains: str) -> onnx.ModelProto:
        """Return the model."""
        graph = helper.make_graph(
            self._nodes, "decoder", self._inputs, self._outputs, self._weights
        )
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(d, 1) for d in domains)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="cohort"
        )


def decoder_graph(
    shape: DecoderShape, weights: Weights, dtype: npt.DTypeLike = np.float32
) -> onnx.ModelProto:
    """Make the graph with fused attention (GroupQueryAttention), as the builder does for CPUs."""
    parts = GraphParts(dtype)
    ids = parts.input("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    mask = parts.input("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])
    lengths = _lengths(parts, mask)
    angles = _rotary_tables(parts, shape)

    table = parts.weight("model.embed_tokens.weight", weights["model.embed_tokens.weight"])
    stream = parts.node("Gather", [table, ids], "embedded")
    added = ""
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        normed, stream = _norm(parts, shape, weights, stream, added, f"{at}.input_layernorm")
        added = _attention(parts, shape, weights, layer, [normed, *lengths, *angles])
        normed, stream = _norm(
            parts, shape, weights, stream, added, f"{at}.post_attention_layernorm"
        )
        added = feed_forward(parts, weights, normed, f"{at}.mlp")
    normed, _ = _norm(parts, shape, weights, stream, added, "model.norm")
    if shape.tied:
        head = parts.node("Transpose", [table], "lm_head.weight", perm=[1, 0])
    else:
        head = parts.weight("lm_head.weight", weights["lm_head.weight"].T)
    parts.node("MatMul", [normed, head], "logits")
    parts.output("logits", ["batch_size", "sequence_length", shape.vocabulary])
    cache_interface(parts, shape)
    return parts.model(CONTRIB)


def cache_interface(parts: GraphParts, shape: DecoderShape) -> None:
    """Add each layer's past keys and values as inputs, and the present ones as outputs."""
    for layer, part in itertools.product(range(shape.layers), ("key", "value")):
        dims: list[int | str] = [
            "batch_size",
            shape.kv_heads,
            "past_sequence_length",
            shape.head_size,
        ]
        parts.input(f"past_key_values.{layer}.{part}", parts.element_type, dims)
        dims[2] = "total_sequence_length"
        parts.output(f"present.{layer}.{part}", dims)


def _lengths(parts: GraphParts, mask: str) -> tuple[str, str]:
    """Compute each row's length less one, and the longest row's length, as INT32."""
    one = parts.constant("one", np.array([1], np.int64))
    total = parts.node("ReduceSum", [mask, one], "mask_sum")
    less = parts.node("Sub", [total, one], "mask_sum_less_one")
    lengths = parts.node("Cast", [less], "seqlens_k", to=TensorProto.INT32)
    dims = parts.node("Shape", [mask], "mask_dims")
    longest = parts.node(
        "Gather", [dims, parts.constant("second", np.array(1, np.int64))], "longest"
    )
    return lengths, parts.node("Cast", [longest], "total_seq_len", to=TensorProto.INT32)


def _rotary_tables(parts: GraphParts, shape: DecoderShape) -> tuple[str, str]:
    angles = np.arange(shape.context)[:, np.newaxis] * frequencies(shape)
    cos, sin = np.cos(angles), np.sin(angles)
    return parts.weight("cos_cache", cos), parts.weight("sin_cache", sin)


def frequencies(shape: DecoderShape) -> Array:
    """Return the rotations per position, [head_size / 2]."""
    half = np.arange(0, shape.head_size, 2) / shape.head_size
    return np.asarray(1 / shape.theta**half)


def _norm(
    parts: GraphParts, shape: DecoderShape, weights: Weights, stream: str, added: str, name: str
) -> tuple[str, str]:
    """Add `added` to the residual stream and normalize it; return the result and the stream."""
    scale = parts.weight(f"{name}.weight", weights[f"{name}.weight"])
    if not added:
        kind = "SimplifiedLayerNormalization"
        normed = parts.node(kind, [stream, scale], name, axis=-1, epsilon=shape.epsilon)
        return normed, stream
    outputs = [name, "", "", f"{name}.stream"]
    parts.nodes(
        "SkipSimplifiedLayerNormalization",
        [stream, added, scale],
        outputs[: 1 if name == "model.norm" else 4],
        domain=CONTRIB,
        epsilon=shape.epsilon,
    )
    return name, outputs[3]


def _attention(
    parts: GraphParts, shape: DecoderShape, weights: Weights, layer: int, inputs: Sequence[str]
) -> str:
    at = f"model.layers.{layer}.self_attn"
    normed, lengths, longest, cos, sin = inputs
    packed = np.concatenate([weights[f"{at}.{part}_proj.weight"] for part in "qkv"]).T
    qkv = parts.node(
        "MatMul", [normed, parts.weight(f"{at}.qkv_proj.weight", packed)], f"{at}.qkv_proj"
    )
    past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
    present = [f"present.{layer}.{part}" for part in ("key", "value")]
    parts.nodes(
        "GroupQueryAttention",
        [qkv, "", "", *past, lengths, longest, cos, sin],
        [at, *present],
        domain=CONTRIB,
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
        scale=float(shape.head_size**-0.5),
        do_rotary=1,
        rotary_interleaved=0,
    )
    return linear(parts, weights, at, f"{at}.o_proj")


def feed_forward(parts: GraphParts, weights: Weights, normed: str, at: str) -> str:
    """Add a SwiGLU block, and return the name of its result."""
    gate = linear(parts, weights, normed, f"{at}.gate_proj")
    up = linear(parts, weights, normed, f"{at}.up_proj")
    sigmoid = parts.node("Sigmoid", [gate], f"{at}.sigmoid")
    active = parts.node("Mul", [gate, sigmoid], f"{at}.silu")
    return linear(parts, weights, parts.node("Mul", [active, up], f"{at}.gated"), f"{at}.down_proj")


def linear(parts: GraphParts, weights: Weights, values: str, name: str) -> str:
    """Add a layer without bias, and return the name of its result."""
    weight = parts.weight(f"{name}.weight", weights[f"{name}.weight"].T)
    return parts.node("MatMul", [values, weight], name)


def int4(model: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize each MatMul's weights to INT4, in blocks of 32, as the builder does for CPUs.

    The embeddings stay as they are; a tied head must have separate weights.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer  # noqa: PLC0415

    quantizer = MatMulNBitsQuantizer(
        model, bits=4, block_size=INT4_BLOCK, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    quantized: onnx.ModelProto = quantizer.model.model
    return quantized
