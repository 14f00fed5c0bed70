"""Decoders that tests and benchmarks use, and the bundled one is written with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from tokenizers import Tokenizer

from models.decoder import letter_tokenizer, write_decoder
from models.decoder_graph import DecoderShape, Weights, random_weights
from tests.plain_decoder import write_plain_decoder

Floats = npt.NDArray[np.float32]

SHAPES = [DecoderShape(), DecoderShape(vocabulary=300, heads=6, kv_heads=3, layers=1, tied=True)]
PROMPT = np.random.default_rng(5).integers(0, 300, 23)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("write", [write_decoder, write_plain_decoder])
def test_graph_computes_llama(tmp_path: Path, shape: DecoderShape, write: Any) -> None:
    """Both graphs give the logits that a plain calculation of Llama gives."""
    weights = random_weights(shape, seed=3)
    session = opened(write(tmp_path, shape, weights))

    logits, _ = run(session, shape, [PROMPT])

    np.testing.assert_allclose(logits[0], llama(shape, weights, PROMPT), atol=2e-5)


@pytest.mark.parametrize("write", [write_decoder, write_plain_decoder])
def test_steps_continue_the_past(tmp_path: Path, write: Any) -> None:
    """Token by token on the kept keys and values, the logits are those of the whole prompt."""
    shape = SHAPES[0]
    session = opened(write(tmp_path, shape))
    whole, _ = run(session, shape, [PROMPT])

    logits, past = run(session, shape, [PROMPT[:20]])
    for at in range(20, 23):
        logits, past = run(session, shape, [PROMPT[at : at + 1]], past)
        np.testing.assert_allclose(logits[0, 0], whole[0, at], atol=2e-5)


def test_int4_stays_near(tmp_path: Path) -> None:
    """INT4 weights are what the builder's quantizer makes, and the logits stay similar."""
    shape = DecoderShape(width=64, inner=128, tied=True)
    full = opened(write_decoder(tmp_path / "full", shape))
    path = write_decoder(tmp_path / "int4", shape, quantize=True)

    exact, _ = run(full, shape, [PROMPT])
    near, _ = run(opened(path), shape, [PROMPT])

    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("MatMulNBits") == 5 * shape.layers + 1  # packed qkv, o, gate, up, down; head
    assert "MatMul" not in kinds
    assert 0.9 < np.corrcoef(exact.ravel(), near.ravel())[0, 1] < 1


def test_folder_is_what_the_library_reads(tmp_path: Path) -> None:
    """The folder has the library's config, and a tokenizer with a chat template."""
    write_decoder(tmp_path, DecoderShape(context=77), end=[0, 3], temperature=0.5)

    config = json.loads((tmp_path / "genai_config.json").read_text())
    assert config["model"]["context_length"] == 77
    assert config["model"]["eos_token_id"] == [0, 3]
    assert config["model"]["decoder"]["head_size"] == 16
    assert config["search"]["temperature"] == 0.5
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert "add_generation_prompt" in tokenizer["chat_template"]


@pytest.mark.parametrize("size", [260, 320, 4000])
def test_tokenizer_has_any_size(tmp_path: Path, size: int) -> None:
    """The tokenizer has as many tokens as asked for, and gives any text back."""
    letter_tokenizer(size).save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "the Ünïcode 漢字 🙂 and\n tabs\t, the end"

    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    ids = tokenizer.encode("<|user|>hi<|end|>").ids
    assert (ids[0], ids[-1]) == (2, 0)


def opened(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(
    session: onnxruntime.InferenceSession,
    shape: DecoderShape,
    rows: Sequence[npt.NDArray[np.int64]],
    past: Sequence[Floats] | None = None,
) -> tuple[Floats, list[Floats]]:
    """Run rows of one length on their past; return logits, and the keys and values."""
    ids = np.stack(rows).astype(np.int64)
    if past is None:
        empty = np.zeros((len(ids), shape.kv_heads, 0, shape.head_size), np.float32)
        past = [empty] * (2 * shape.layers)
    before = past[0].shape[2]
    positions = np.arange(before, before + ids.shape[1])
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones((len(ids), before + ids.shape[1]), np.int64),
        "position_ids": np.tile(positions, (len(ids), 1)),
    }
    names = [value.name for value in session.get_inputs()]
    inputs |= zip([name for name in names if name.startswith("past")], past, strict=True)
    logits, *present = session.run(None, {name: inputs[name] for name in names})
    return logits, present


def llama(shape: DecoderShape, weights: Weights, ids: npt.NDArray[np.int64]) -> Floats:
    """Compute logits [tokens, vocabulary] of one row in FP64."""

    def norm(values: Any, name: str) -> Any:
        root = np.sqrt((values**2).mean(-1, keepdims=True) + shape.epsilon)
        return values / root * weights[f"{name}.weight"]

    def layer(values: Any, name: str) -> Any:
        return values @ weights[f"{name}.weight"].T

    def rotated(values: Any) -> Any:
        pairs = values[..., : shape.head_size // 2] + 1j * values[..., shape.head_size // 2 :]
        steps = shape.theta ** (-np.arange(0, shape.head_size, 2) / shape.head_size)
        turned = pairs * np.exp(1j * np.arange(len(ids))[:, None, None] * steps)
        return np.concatenate([turned.real, turned.imag], -1)

    stream = weights["model.embed_tokens.weight"][ids].astype(np.float64)
    for number in range(shape.layers):
        at = f"model.layers.{number}"
        normed = norm(stream, f"{at}.input_layernorm")
        query, key, value = (
            layer(normed, f"{at}.self_attn.{part}_proj").reshape(len(ids), -1, shape.head_size)
            for part in "qkv"
        )
        shared = shape.heads // shape.kv_heads
        key, value = rotated(key).repeat(shared, 1), value.repeat(shared, 1)
        scores = np.einsum("qhd,khd->hqk", rotated(query), key) / np.sqrt(shape.head_size)
        scores += np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, value).reshape(len(ids), -1)
        stream = stream + layer(mixed, f"{at}.self_attn.o_proj")
        normed = norm(stream, f"{at}.post_attention_layernorm")
        gate = layer(normed, f"{at}.mlp.gate_proj")
        active = gate / (1 + np.exp(-gate)) * layer(normed, f"{at}.mlp.up_proj")
        stream = stream + layer(active, f"{at}.mlp.down_proj")
    final = norm(stream, "model.norm")
    head = "model.embed_tokens" if shape.tied else "lm_head"
    return np.asarray(layer(final, head), np.float32)
