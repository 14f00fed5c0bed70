"""The benchmark's models: random weights as ONNX and as GGUF."""

from __future__ import annotations

import json
import logging
import math
import subprocess
from dataclasses import asdict
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.generative.environments import GGUF, PEERS
from benchmarks.servers import BUILD
from models.decoder import SPECIAL, letter_tokenizer, write_decoder
from models.decoder_graph import DecoderShape, random_weights

SHAPES = {
    "0.5 M": DecoderShape(512, 128, 2, 4, 2, 32, 384, 512),
    "56 M": DecoderShape(8192, 640, 10, 10, 5, 64, 1728, 512),
}

PRECISIONS = ("FP32", "INT4")


def parameters(shape: DecoderShape) -> int:
    """Return the number of weights."""
    return sum(math.prod(size) for _, size in shape.weights())


def draw_prompts(draws: Random, callers: int, length: int, vocabulary: int) -> list[list[int]]:
    """Draw prompts that share no prefix, without special tokens."""
    return [[draws.randrange(260, vocabulary) for _ in range(length)] for _ in range(callers)]


def write_models(size: str, precision: str) -> tuple[Path, Path]:
    """Write both forms of a model, unless they exist; return the version's folder and the GGUF."""
    shape = SHAPES[size]
    name = f"{size.replace(' ', '').lower()}-{precision.lower()}"
    folder = BUILD / "generative" / name / "1"
    gguf = BUILD / "generative" / f"{name}.gguf"
    logging.getLogger("onnxruntime").setLevel(logging.WARNING)
    if not (folder / "tokenizer_config.json").exists():
        write_decoder(folder, shape, quantize=precision == "INT4")
    if not gguf.exists():
        weights = BUILD / "generative" / f"{name}.npz"
        model = json.loads(letter_tokenizer(shape.vocabulary).to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
        described = {"tokens": tokens, "merges": model["merges"], "special": len(SPECIAL)}
        np.savez(
            weights,
            **random_weights(shape),
            shape=json.dumps(asdict(shape)),
            tokenizer=json.dumps(described),
        )
        command = [*GGUF.command(PEERS / "write_gguf.py"), str(weights)]
        kind = "f32" if precision == "FP32" else "q4_0"
        if precision == "FP32":  # for OpenVINO
            half = gguf.with_name(f"{name}-f16.gguf")
            subprocess.run([*command, str(half), "f16"], check=True)
        part = gguf.with_suffix(".part")
        subprocess.run([*command, str(part), kind], check=True)
        part.rename(gguf)
        weights.unlink()
    return folder, gguf
