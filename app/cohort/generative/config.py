"""The description of a decoder: from `genai_config.json`, or from the inputs of a plain export."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohort.errors import LoadFailed, quoted
from cohort.generation import Sampling
from cohort.system.kept_files import read_content, why_unreadable
from cohort.tensors import TensorSpec

MAX_GENAI_BYTES = 2**20
MAX_LAYERS = 1024
MAX_CONTEXT = 2**24
MAX_TOKEN = 2**31 - 1
MAX_END_TOKENS = 256

DEFAULT_CONTEXT = 2048
"""The context length of an export that does not say it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of a decoder's tensors.

    past, present: The names of keys and values of all layers, in the same order.
    input_ids, attention_mask, position_ids, logits: The names of the others.
    """

    past: Sequence[str]
    present: Sequence[str]
    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    logits: str = "logits"


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A language model.

    file: The ONNX file of its decoder, in the version's folder.
    layout: The names of its tensors.
    context_length: The maximum of tokens of a prompt and its answer.
    end_tokens: The ids of tokens that end an answer.
    sampling: The defaults of requests.
    heads, head_size: The heads of the cache, and their size; 0: unknown.
    shares: True if the graph may write new keys and values into the memory of the old ones.
    """

    file: str
    layout: Layout
    context_length: int
    end_tokens: frozenset[int]
    sampling: Sampling = field(default_factory=Sampling)
    heads: int = 0
    head_size: int = 0
    shares: bool = False


def read_genai_config(path: Path) -> DecoderConfig:
    """Read a `genai_config.json`, as onnxruntime-genai's builder writes it. Raises LoadFailed."""
    values = _Values(_read_json(path), path.name)
    decoder = "model.decoder"
    for key in ("encoder", "vision", "speech", "embedding"):
        if values.get(f"model.{key}") is not None:
            raise values.failed(f"model.{key}", "models with this part are not supported yet")
    if values.get(f"{decoder}.pipeline") is not None:
        raise values.failed(f"{decoder}.pipeline", "decoders in several files are not supported")
    file = _decoder_file(values)
    layers = values.whole(f"{decoder}.num_hidden_layers", 1, MAX_LAYERS)
    past = [
        values.text(f"{decoder}.inputs.past_{kind}_names", f"past_key_values.%d.{kind}")
        for kind in ("key", "value")
    ]
    present = [
        values.text(f"{decoder}.outputs.present_{kind}_names", f"present.%d.{kind}")
        for kind in ("key", "value")
    ]
    for pattern in (*past, *present):
        if pattern.count("%") != 1 or "%d" not in pattern:
            raise values.failed(decoder, f"{quoted(pattern)} needs one %d, for the layer's number")
    layout = Layout(
        [name % layer for layer in range(layers) for name in past],
        [name % layer for layer in range(layers) for name in present],
        values.text(f"{decoder}.inputs.input_ids", "input_ids"),
        values.text(f"{decoder}.inputs.attention_mask", "attention_mask"),
        values.text(f"{decoder}.inputs.position_ids", "position_ids"),
        values.text(f"{decoder}.outputs.logits", "logits"),
    )
    return DecoderConfig(
        file,
        layout,
        values.whole("model.context_length", 2, MAX_CONTEXT),
        values.tokens("model.eos_token_id"),
        _sampling(values),
        values.whole(f"{decoder}.num_key_value_heads", 1, 2**16),
        values.whole(f"{decoder}.head_size", 1, 2**16),
        shares=values.flag("search.past_present_share_buffer", default=True),
    )


def read_decoder_file(path: Path) -> str:
    """Return the name of the decoder's file in a `genai_config.json`. Raises LoadFailed."""
    return _decoder_file(_Values(_read_json(path), path.name))


def _decoder_file(values: _Values) -> str:
    key = "model.decoder.filename"
    file = values.text(key, "model.onnx")
    if Path(file).name != file or file.startswith("."):
        raise values.failed(key, f"must be a file next to it, got {quoted(file)}")
    return file


_PAST = re.compile(r"past_key_values\.(\d+)\.(?:(?:decoder\.)?key|(?:decoder\.)?value)")


def is_decoder(inputs: Sequence[str], outputs: Sequence[str]) -> bool:
    """Return True if these are the inputs and outputs of a decoder with a cache."""
    return (
        "input_ids" in inputs
        and "logits" in outputs
        and any(_PAST.fullmatch(name) for name in inputs)
        and any(name.startswith("present.") for name in outputs)
    )


def describe_export(folder: Path, file: str, inputs: Sequence[TensorSpec]) -> DecoderConfig:
    """Describe a plain decoder export, whose neighbours may be a Hugging Face model's JSON files.

    inputs: The inputs of the model. Raises LoadFailed.
    """
    past = [spec.name for spec in inputs if _PAST.fullmatch(spec.name)]
    layout = Layout(past, [name.replace("past_key_values", "present", 1) for name in past])
    config = _Values(_read_neighbour(folder, "config.json"), "config.json")
    wanted = _Values(_read_neighbour(folder, "generation_config.json"), "generation_config.json")
    context = DEFAULT_CONTEXT
    for key in ("max_position_embeddings", "n_positions", "n_ctx"):
        if config.get(key) is not None:
            context = config.whole(key, 2, MAX_CONTEXT)
            break
    end = wanted.tokens("eos_token_id") or config.tokens("eos_token_id")
    shape = next((spec.shape or () for spec in inputs if spec.name in past), ())
    heads, _, size = shape[1:] if len(shape) == 4 else (None, None, None)
    known = isinstance(heads, int) and isinstance(size, int)
    if not known and not (folder / "config.json").is_file():
        raise LoadFailed(
            f"the heads of its cache are not in {file}: it needs the model's genai_config.json or "
            "config.json next to it"
        )
    if not isinstance(heads, int):
        key = "num_key_value_heads"
        heads = config.whole("num_attention_heads" if config.get(key) is None else key, 1, 2**16)
    if not isinstance(size, int) and config.get("head_dim") is not None:
        size = config.whole("head_dim", 1, 2**16)
    elif not isinstance(size, int):
        width = config.whole("hidden_size", 1, 2**24)
        size = max(width // config.whole("num_attention_heads", 1, 2**16), 1)
    return DecoderConfig(file, layout, context, end, _sampling(wanted, ""), heads, size)


def _read_neighbour(folder: Path, name: str) -> object:
    path = folder / name
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> object:
    try:
        content = read_content(path, MAX_GENAI_BYTES)
    except (OSError, ValueError) as error:
        raise LoadFailed(f"its {path.name} {why_unreadable(error)}") from error
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise LoadFailed(f"its {path.name} is not JSON: {error}") from error


def _sampling(values: _Values, prefix: str = "search.") -> Sampling:
    """Return the defaults of sampling; without `do_sample`, the most likely token is taken."""
    drawn = values.flag(f"{prefix}do_sample", default=False)
    return Sampling(
        temperature=values.number(f"{prefix}temperature", 0, 100, 1.0) if drawn else 0.0,
        top_k=int(values.number(f"{prefix}top_k", 0, MAX_TOKEN, 0)),
        top_p=values.number(f"{prefix}top_p", 0, 1, 1.0),
        min_p=values.number(f"{prefix}min_p", 0, 1, 0.0),
        repetition_penalty=values.number(f"{prefix}repetition_penalty", 0.001, 100, 1.0),
    )


class _Values:
    """The values of a JSON object, by dotted keys; null counts as absent."""

    def __init__(self, tree: object, file: str) -> None:
        self._tree, self._file = tree, file
        if not isinstance(tree, dict):
            raise LoadFailed(f"its {file} must be an object")

    def failed(self, key: str, problem: str) -> LoadFailed:
        return LoadFailed(f"its {self._file}: {key}: {problem}")

    def get(self, key: str) -> Any:
        value: Any = self._tree
        for step in key.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return value

    def text(self, key: str, default: str) -> str:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 256:
            raise self.failed(key, "must be a short text")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.failed(key, "must be true or false")
        return value

    def whole(self, key: str, low: int, high: int) -> int:
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            got = "nothing" if value is None else repr(value)[:80]
            raise self.failed(key, f"must be a whole number from {low} to {high}, got {got}")
        return value

    def number(self, key: str, low: float, high: float, default: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not low <= value <= high
        ):
            raise self.failed(key, f"must be from {low:g} to {high:g}, got {repr(value)[:80]}")
        return float(value)

    def tokens(self, key: str) -> frozenset[int]:
        value = self.get(key)
        found = value if isinstance(value, list) else [] if value is None else [value]
        valid = len(found) <= MAX_END_TOKENS and all(
            isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= MAX_TOKEN
            for one in found
        )
        if not valid:
            raise self.failed(key, f"must be a token's id or at most {MAX_END_TOKENS} of them")
        return frozenset(found)
