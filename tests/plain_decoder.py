"""Decoders without fused operators, as Optimum exports Llama: the same weights, another graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from models.decoder import letter_tokenizer, write_json, write_tokenizer
from models.decoder_graph import (
    DecoderShape,
    GraphParts,
    Weights,
    cache_interface,
    feed_forward,
    frequencies,
    linear,
    random_weights,
)


def write_plain_decoder(
    folder: Path,
    shape: DecoderShape | None = None,
    weights: Weights | None = None,
    *,
    seed: int = 0,
) -> Path:
    """Write the folder of a decoder that has no genai_config.json, and return its graph's path."""
    shape = shape or DecoderShape()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    drawn = random_weights(shape, seed=seed) if weights is None else weights
    path.write_bytes(plain_graph(shape, drawn).SerializeToString())
    write_tokenizer(folder, letter_tokenizer(shape.vocabulary))
    write_json(folder / "config.json", huggingface_config(shape))
    write_json(folder / "generation_config.json", {"eos_token_id": 0, "pad_token_id": 0})
    return path


def huggingface_config(shape: DecoderShape) -> dict[str, object]:
    """Return the config.json of a Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.theta,
        "tie_word_embeddings": shape.tied,
        "vocab_size": shape.vocabulary,
        "eos_token_id": 0,
        "bos_token_id": 0,
    }


def plain_graph(shape: DecoderShape, weights: Weights) -> onnx.ModelProto:
    """Make the graph with attention by MatMul and Softmax, and positions as an input."""
    parts = GraphParts()
    ids = parts.input("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    mask = parts.input("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])
    positions = parts.input("position_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    for name, values in (
        ("zero", 0), ("one", 1), ("two", 2), ("heads_axis", [1]), ("repeat_axis", [2]),
        ("mask_axes", [1, 2]), ("last", [-1]), ("first", [0]), ("end", [2**62]),
        ("middle", [shape.head_size // 2]),
        ("query_dims", [0, 0, shape.heads, shape.head_size]),
        ("key_dims", [0, 0, shape.kv_heads, shape.head_size]),
        ("repeats", [1, 1, shape.heads // shape.kv_heads, 1, 1]),
        ("merged_dims", [0, shape.heads, -1, shape.head_size]),
        ("flat_dims", [0, 0, shape.heads * shape.head_size]),
    ):  # fmt: skip
        parts.constant(name, np.array(values, np.int64))
    for name, number in (("lowest", np.finfo(np.float32).min), ("nothing", 0), ("square", 2)):
        parts.weight(name, np.array(number))
    parts.weight("scale", np.array(shape.head_size**-0.5))
    parts.weight("epsilon", np.array(shape.epsilon))
    bias = _bias(parts, mask)
    angles = _angles(parts, shape, positions)

    table = parts.weight("model.embed_tokens.weight", weights["model.embed_tokens.weight"])
    stream = parts.node("Gather", [table, ids], "embedded")
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        normed = _norm(parts, weights, stream, f"{at}.input_layernorm")
        heard = _attention(parts, weights, layer, normed, bias, angles)
        stream = parts.node("Add", [stream, heard], f"{at}.heard")
        normed = _norm(parts, weights, stream, f"{at}.post_attention_layernorm")
        thought = feed_forward(parts, weights, normed, f"{at}.mlp")
        stream = parts.node("Add", [stream, thought], f"{at}.thought")
    normed = _norm(parts, weights, stream, "model.norm")
    head = weights["model.embed_tokens.weight" if shape.tied else "lm_head.weight"]
    parts.node("MatMul", [normed, parts.weight("lm_head.weight", head.T)], "logits")
    parts.output("logits", ["batch_size", "sequence_length", shape.vocabulary])
    cache_interface(parts, shape)
    return parts.model()


def _norm(parts: GraphParts, weights: Weights, values: str, name: str) -> str:
    squared = parts.node("Pow", [values, "square"], f"{name}.squared")
    mean = parts.node("ReduceMean", [squared, "last"], f"{name}.mean")
    safe = parts.node("Add", [mean, "epsilon"], f"{name}.safe")
    root = parts.node("Sqrt", [safe], f"{name}.root")
    even = parts.node("Div", [values, root], f"{name}.even")
    scale = parts.weight(f"{name}.weight", weights[f"{name}.weight"])
    return parts.node("Mul", [even, scale], name)


def _bias(parts: GraphParts, mask: str) -> str:
    """Compute what is added to scores, [rows, 1, new, total]: 0, or the lowest number."""
    total = parts.node("Gather", [parts.node("Shape", [mask], "mask_dims"), "one"], "total")
    past_dims = parts.node("Shape", ["past_key_values.0.key"], "past_dims")
    past = parts.node("Gather", [past_dims, "two"], "past")
    columns = parts.node("Range", ["zero", total, "one"], "columns")
    rows = parts.node("Range", [past, total, "one"], "rows")
    tall = parts.node("Unsqueeze", [rows, "last"], "tall")
    causal = parts.node("LessOrEqual", [columns, tall], "causal")
    real = parts.node("Cast", [mask], "real", to=TensorProto.BOOL)
    wide = parts.node("Unsqueeze", [real, "mask_axes"], "wide")
    seen = parts.node("And", [causal, wide], "seen")
    return parts.node("Where", [seen, "nothing", "lowest"], "bias")


def _angles(parts: GraphParts, shape: DecoderShape, positions: str) -> tuple[str, str]:
    """Compute cosines and sines, [rows, 1, new, head_size]."""
    steps = parts.weight("inv_freq", np.concatenate([frequencies(shape)] * 2)[np.newaxis])
    floats = parts.node("Cast", [positions], "position_floats", to=TensorProto.FLOAT)
    tall = parts.node("Unsqueeze", [floats, "last"], "position_column")
    angles = parts.node("MatMul", [tall, steps], "angles")
    broad = parts.node("Unsqueeze", [angles, "heads_axis"], "broad_angles")
    return parts.node("Cos", [broad], "cos"), parts.node("Sin", [broad], "sin")


def _attention(
    parts: GraphParts,
    weights: Weights,
    layer: int,
    normed: str,
    bias: str,
    angles: tuple[str, str],
) -> str:
    at = f"model.layers.{layer}.self_attn"
    query = _rotated(parts, _split(parts, weights, normed, f"{at}.q", "query_dims"), angles)
    key = _rotated(parts, _split(parts, weights, normed, f"{at}.k", "key_dims"), angles)
    value = _split(parts, weights, normed, f"{at}.v", "key_dims")
    keys = _with_past(parts, key, f"{layer}.key")
    values = _with_past(parts, value, f"{layer}.value")
    turned = parts.node("Transpose", [keys], f"{at}.keys_turned", perm=[0, 1, 3, 2])
    products = parts.node("MatMul", [query, turned], f"{at}.products")
    scaled = parts.node("Mul", [products, "scale"], f"{at}.scaled")
    masked = parts.node("Add", [scaled, bias], f"{at}.masked")
    shares = parts.node("Softmax", [masked], f"{at}.shares", axis=-1)
    mixed = parts.node("MatMul", [shares, values], f"{at}.mixed")
    back = parts.node("Transpose", [mixed], f"{at}.back", perm=[0, 2, 1, 3])
    return linear(parts, weights, parts.node("Reshape", [back, "flat_dims"], at), f"{at}.o_proj")


def _split(parts: GraphParts, weights: Weights, normed: str, name: str, dims: str) -> str:
    """Compute [rows, heads, new, head_size]."""
    flat = linear(parts, weights, normed, f"{name}_proj")
    heads = parts.node("Reshape", [flat, dims], f"{name}.heads")
    return parts.node("Transpose", [heads], f"{name}.turned", perm=[0, 2, 1, 3])


def _rotated(parts: GraphParts, values: str, angles: tuple[str, str]) -> str:
    low = parts.node("Slice", [values, "first", "middle", "last"], f"{values}.low")
    high = parts.node("Slice", [values, "middle", "end", "last"], f"{values}.high")
    negative = parts.node("Neg", [high], f"{values}.negative")
    swapped = parts.node("Concat", [negative, low], f"{values}.swapped", axis=-1)
    straight = parts.node("Mul", [values, angles[0]], f"{values}.straight")
    across = parts.node("Mul", [swapped, angles[1]], f"{values}.across")
    return parts.node("Add", [straight, across], f"{values}.rotated")


def _with_past(parts: GraphParts, new: str, name: str) -> str:
    """Append to the past, and repeat for the heads that share a key: [rows, heads, total, size]."""
    every = parts.node("Concat", [f"past_key_values.{name}", new], f"present.{name}", axis=2)
    apart = parts.node("Unsqueeze", [every, "repeat_axis"], f"{name}.apart")
    repeated = parts.node("Tile", [apart, "repeats"], f"{name}.repeated")
    return parts.node("Reshape", [repeated, "merged_dims"], f"{name}.merged")
