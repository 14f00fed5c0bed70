"""Compare a converted language model with its source: perplexity, choices and speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from cohort.tensors import Array
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.source import SourceModel

WINDOW_TOKENS = 128
"""Tokens of one run: the text is cut into windows, so a run's memory is bounded."""

MAX_WINDOWS = 8

PROMPT_TOKENS, ANSWER_TOKENS = 32, 32
"""Tokens of the prompt, and of the answer whose speed is measured."""

TEXT = """\
A server answers requests from many callers at once. It reads each request, waits for a free slot,
runs the model and returns the answer. When several requests arrive together, they share one run,
because a processor reads the weights once and uses them for all rows. A language model writes its
answer one token at a time, and each token needs the keys and values of all tokens before it. These
are kept in memory, so a long conversation needs more memory than a short one. If the memory is
full, a request waits or is refused with the time to try again. An operator looks at
the time to the first token and at the time between tokens, since these are what a reader notices.
Smaller weights make the model faster, but they also change its answers. So a converted model is
compared with its source before it is used.
"""
"""The text to compare on if the user gives none."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Comparison of a converted model with its source.

    tokens: Tokens of the text that were compared.
    perplexities: Perplexity on the text, of the source and the converted model.
    agreement: Share of positions of the text at which both choose the same next token.
    greedy: Tokens of a greedy answer that are equal from its start, and its length.
    speeds: Tokens per second of that answer for one caller, of the source and the converted model.
    max_absolute: Largest difference of a logit.
    """

    tokens: int
    perplexities: tuple[float, float]
    agreement: float
    greedy: tuple[int, int]
    speeds: tuple[float, float]
    max_absolute: float


class Decoder:
    """A converted model, run for one caller by ONNX Runtime on the CPU."""

    def __init__(self, folder: Path) -> None:
        """Open `folder`, which has the builder's files."""
        config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
        self.context = int(config["context_length"])
        decoder = config["decoder"]
        self._session = ort.InferenceSession(
            folder / decoder["filename"], providers=["CPUExecutionProvider"]
        )
        self._outputs = [one.name for one in self._session.get_outputs()]
        inputs = [one for one in self._session.get_inputs() if one.name.startswith("past_")]
        heads, size = int(decoder["num_key_value_heads"]), int(decoder["head_size"])
        self._empty = {
            one.name: ort.OrtValue.ortvalue_from_numpy(np.zeros((1, heads, 0, size), _dtype(one)))
            for one in inputs
        }

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits [length, vocabulary] of a text from its start."""
        return _floats(self._step(ids, len(ids), self._empty)[0].numpy()[0])

    def answer(self, prompt: Sequence[int], steps: int) -> tuple[list[int], float]:
        """Return `steps` greedy tokens, and the seconds of choosing all but the first."""
        chosen: list[int] = []
        ids, past, began = list(prompt), self._empty, 0.0
        for step in range(steps):
            logits, *present = self._step(ids, len(prompt) + step, past)
            ids = [int(logits.numpy()[0, -1].argmax())]
            began = began or perf_counter()
            chosen += ids
            past = dict(zip(self._empty, present, strict=True))
        return chosen, perf_counter() - began

    def _step(
        self, ids: Sequence[int], length: int, past: dict[str, ort.OrtValue]
    ) -> list[ort.OrtValue]:
        """Run `ids` after the tokens of `past`; return the logits, then keys and values."""
        feeds: dict[str, Array] = {"input_ids": np.array([ids])}
        feeds["attention_mask"] = np.ones((1, length))
        if any(one.name == "position_ids" for one in self._session.get_inputs()):
            feeds["position_ids"] = np.arange(length - len(ids), length)[None]
        values = {
            name: ort.OrtValue.ortvalue_from_numpy(value.astype(np.int64))
            for name, value in feeds.items()
        }
        try:
            made: list[ort.OrtValue] = self._session.run_with_ort_values(
                self._outputs, {**values, **past}
            )
        except Exception as error:  # ONNX Runtime's errors have no base class
            raise Rejected(f"ONNX Runtime failed to run the converted model: {error}") from error
        return made


def compare_on_text(
    source: SourceModel, folder: Path, text: str, on_progress: Callable[[str], None]
) -> Measured:
    """Run both models on `text`. Raises Misused if it has less than two tokens, and Rejected."""
    decoder = Decoder(folder)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    if len(ids) < 2:
        raise Misused("the text to compare on has less than two tokens: give a longer --text")
    parts = windows(ids, min(WINDOW_TOKENS, decoder.context))
    losses: tuple[list[float], list[float]] = ([], [])
    same, positions, largest = 0, 0, 0.0
    for number, part in enumerate(parts, 1):
        on_progress(f"Comparing with PyTorch: {number} of {len(parts)}")
        right = _floats(source.run([{"input_ids": np.array([part])}])[0]["logits"])
        got = decoder.logits(part)
        losses[0].append(loss(right, part))
        losses[1].append(loss(got, part))
        same += int((right.argmax(1) == got.argmax(1)).sum())
        positions += len(part)
        largest = max(largest, float(np.abs(right - got).max()))
    on_progress("Measuring the speed")
    steps = min(ANSWER_TOKENS, decoder.context - 1)
    prompt = ids[: max(1, min(PROMPT_TOKENS, decoder.context - steps))]
    asked = {"input_ids": np.array([prompt]), "steps": np.array([steps])}
    greedy = source.run([asked])[0]
    decoder.answer(prompt, min(4, steps))  # the first run of a shape allocates memory
    chosen, seconds = decoder.answer(prompt, steps)
    wanted = greedy["tokens"].tolist()
    equal = next((i for i in range(steps) if chosen[i] != wanted[i]), steps)
    predicted = sum(len(part) - 1 for part in parts)
    before, after = (float(np.exp(sum(one) / predicted)) for one in losses)
    return Measured(
        positions,
        (before, after),
        same / positions,
        (equal, steps),
        ((steps - 1) / max(float(greedy["seconds"][0]), 1e-9), (steps - 1) / max(seconds, 1e-9)),
        largest,
    )


def windows(ids: Sequence[int], length: int) -> list[Sequence[int]]:
    """Cut a text into windows of at most `length` tokens, and at least two; drop the rest."""
    parts = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [part for part in parts if len(part) > 1][:MAX_WINDOWS]


def loss(logits: Array, ids: Sequence[int]) -> float:
    """Return the sum of -log p of each token after the first; `logits` [length, vocabulary]."""
    rows = logits[:-1].astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    chosen = rows[np.arange(len(rows)), np.asarray(ids[1:])]
    return float((np.log(np.exp(rows).sum(1)) - chosen).sum())


def _floats(array: Array) -> NDArray[np.float32]:
    return array.astype(np.float32)


def _dtype(value: ort.NodeArg) -> type[np.generic]:
    return np.float16 if value.type == "tensor(float16)" else np.float32
