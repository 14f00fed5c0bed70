"""Write version folders of decoders as onnxruntime-genai's builder does, from any weights.

`write_decoder` writes the graph, genai_config.json and a tokenizer with a chat template. Without
weights it draws random ones, for tests and benchmarks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from models.decoder_graph import DecoderShape, Weights, decoder_graph, int4, random_weights

END = "<|end|>"
SPECIAL = (END, "<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def genai_config(
    shape: DecoderShape, *, end: int | Sequence[int] = 0, **search: Any
) -> dict[str, Any]:
    """Return what belongs into genai_config.json.

    end: The ids of the tokens that end an answer.
    search: Defaults of sampling that differ from the library's.
    """
    return {
        "model": {
            "bos_token_id": end if isinstance(end, int) else end[0],
            "context_length": shape.context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": shape.head_size,
                "hidden_size": shape.width,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
                "num_attention_heads": shape.heads,
                "num_hidden_layers": shape.layers,
                "num_key_value_heads": shape.kv_heads,
            },
            "eos_token_id": end,
            "pad_token_id": end if isinstance(end, int) else end[0],
            "type": "llama",
            "vocab_size": shape.vocabulary,
        },
        "search": {
            "diversity_penalty": 0.0,
            "do_sample": False,
            "early_stopping": True,
            "length_penalty": 1.0,
            "max_length": shape.context,
            "min_length": 0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": True,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
            **search,
        },
    }


def letter_tokenizer(size: int) -> Tokenizer:
    """Make a byte-level BPE tokenizer of exactly `size` tokens, whose merges are groups of letters.

    The first tokens are `SPECIAL`, then come the 256 bytes, so `size` must be at least 260.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    single = [*SPECIAL, *alphabet]
    merges = list(itertools.islice(_merges(), size - len(single)))
    tokens = [*single, *(start + end for start, end in merges)]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    return byte_level(Tokenizer(models.BPE(vocabulary, merges)))


def byte_level(tokenizer: Tokenizer) -> Tokenizer:
    """Make a BPE tokenizer one of bytes, without a space before the first word."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def _merges() -> Iterator[tuple[str, str]]:
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    grown: Iterable[str] = ["Ġ", *letters]
    while True:
        pairs = [(start, letter) for start in grown for letter in letters]
        yield from pairs
        grown = [start + letter for start, letter in pairs]


def write_decoder(
    folder: Path,
    shape: DecoderShape | None = None,
    weights: Weights | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    template: str = CHAT_TEMPLATE,
    quantize: bool = False,
    dtype: npt.DTypeLike = np.float32,
    seed: int = 0,
    end: int | Sequence[int] = 0,
    **search: Any,
) -> Path:
    """Write a version's folder, and return the path of its graph.

    shape: Default: a tiny decoder that is made in a fraction of a second.
    weights: Default: random ones from `seed`.
    tokenizer: Default: `letter_tokenizer` of the shape's vocabulary.
    quantize: True for INT4.
    dtype: FP32, or FP16 for GPUs.
    end, search: As for `genai_config`.
    """
    shape = shape or DecoderShape()
    weights = random_weights(shape, seed=seed) if weights is None else weights
    if quantize and shape.tied:
        weights = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
        shape = replace(shape, tied=False)
    graph = decoder_graph(shape, weights, dtype)
    path = folder / "model.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes((int4(graph) if quantize else graph).SerializeToString(deterministic=True))
    write_json(folder / "genai_config.json", genai_config(shape, end=end, **search))
    write_tokenizer(folder, tokenizer or letter_tokenizer(shape.vocabulary), template)
    return path


def write_tokenizer(folder: Path, tokenizer: Tokenizer, template: str = CHAT_TEMPLATE) -> None:
    """Write tokenizer.json, and tokenizer_config.json with the chat template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END,
        "pad_token": END,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    write_json(folder / "tokenizer_config.json", config)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON for readers: indented, with a newline at the end."""
    path.write_text(json.dumps(value, indent=2) + "\n")
