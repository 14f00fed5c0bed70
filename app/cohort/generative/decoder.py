"""The decoder of a language model, on keys and values that stay in one place.

The past and the present of a run are the same memory. The model writes the keys and values of a
token behind those of the tokens before it. So no step copies the results of earlier steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from cohort.generative.cache import CacheMemory
from cohort.generative.config import DecoderConfig
from cohort.session import OrtRunControl, Session, run_failure
from cohort.tensors import BY_NAME, Array

PADDED_TO = 64
"""Masks of steps are padded to a multiple of this length, so that few steps change their shape."""

NO_GRAPH = "-1"
"""The graph id of runs that no GPU captures, because their shapes change."""


class Decoder(Protocol):
    """Computes logits for sequences, each in a slot. Used by one thread at a time.

    slots: The number of sequences.
    length: The maximum tokens of a sequence.
    token_bytes: Bytes of the cache for one token.
    vocabulary: The number of logits.
    """

    slots: int
    length: int
    token_bytes: int
    vocabulary: int

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> Array:
        """Compute tokens of one slot behind the `start` tokens that it has.

        Returns the logits behind the last one, FP32 [vocabulary]; valid until the next call.
        Raises InferenceFailed.
        """

    def decode(self, tokens: Array, lengths: Array) -> Array:
        """Compute one token in each of the first slots.

        tokens: INT64 [rows]; -1 for slots whose logits are not needed.
        lengths: The tokens that each slot has then, INT64 [rows]; 1 for those without a sequence.

        Returns the logits, FP32 [rows, vocabulary]; valid until the next call. Raises
        InferenceFailed.
        """

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a slot to another."""

    def read(self, slot: int, start: int, stop: int) -> Array:
        """Return a copy of the keys and values of a slot's tokens."""

    def write(self, slot: int, start: int, block: Array) -> None:
        """Write keys and values that `read` returned."""

    def free(self, slot: int) -> None:
        """Forget the tokens of a slot."""

    def stop(self) -> None:
        """Stop the run in progress and all later ones; from any thread."""

    def close(self) -> None:
        """Free the model and its memory."""


class SharedDecoder:
    """A decoder whose graph writes into the memory of the past. Implements `Decoder`.

    session: The open model; closed with the decoder.
    config: The names and shapes of its tensors.
    slots: The number of sequences.
    length: The maximum tokens of a sequence.
    """

    def __init__(self, session: Session, config: DecoderConfig, slots: int, length: int) -> None:
        self._session, self._raw, layout = session, session.raw, config.layout
        self._layout, self.slots, self.length = layout, slots, length
        self._control = OrtRunControl()
        # Without this entry, ONNX Runtime raises and catches an exception in each run (30 us).
        self._control.options.add_run_config_entry("gpu_graph_id", NO_GRAPH)
        inputs = {spec.name: spec for spec in session.inputs}
        outputs = {spec.name: spec for spec in session.outputs}
        self._kind = inputs[layout.past[0]].datatype
        cache_dtype = _memory_dtype(self._kind)
        self._cache = CacheMemory(
            len(layout.past),
            slots,
            heads=config.heads,
            length=length,
            head_size=config.head_size,
            dtype=cache_dtype,
        )
        self.token_bytes = token_bytes(config, self._kind)
        logits = outputs[layout.logits]
        self.vocabulary = int((logits.shape or (0,))[-1] or 0)
        self._last_only = (logits.shape or ())[1:2] == (1,)
        self._logits_dtype = np.dtype(BY_NAME[logits.datatype].dtype)
        self._has_positions = layout.position_ids in inputs
        self._ids = np.zeros(slots, np.int64)
        self._positions = np.zeros(slots, np.int64)
        self._mask = np.zeros(0, np.int64)
        self._steps = np.arange(length, dtype=np.int64)
        self._logits = np.zeros((slots, self.vocabulary), self._logits_dtype)
        self._chunk_logits = np.zeros(0, self._logits_dtype)
        self._bindings: dict[
            int, tuple[Any, int]
        ] = {}  # by rows: for steps, with the mask's length
        self._chunk_bindings: dict[int, Any] = {}  # by slot

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> Array:
        """See `Decoder`."""
        binding = self._chunk_bindings.get(slot)
        if binding is None:
            binding = self._chunk_bindings[slot] = self._bind_cache(slot, slot + 1)
        count, layout = len(tokens), self._layout
        ids = np.array(tokens, np.int64)
        mask = np.ones(start + count, np.int64)
        _bind(binding.bind_input, layout.input_ids, ids, (1, count))
        _bind(binding.bind_input, layout.attention_mask, mask, (1, start + count))
        if self._has_positions:
            positions = self._steps[start : start + count]
            _bind(binding.bind_input, layout.position_ids, positions, (1, count))
        rows = 1 if self._last_only else count
        if self._chunk_logits.size < rows * self.vocabulary:
            self._chunk_logits = np.zeros(rows * self.vocabulary, self._logits_dtype)
        shape = (1, rows, self.vocabulary)
        _bind(binding.bind_output, layout.logits, self._chunk_logits, shape)
        self._run(binding)
        last = self._chunk_logits[(rows - 1) * self.vocabulary : rows * self.vocabulary]
        return last.astype(np.float32, copy=False)

    def decode(self, tokens: Array, lengths: Array) -> Array:
        """See `Decoder`."""
        rows = len(tokens)
        total = min(-(-int(lengths.max()) // PADDED_TO) * PADDED_TO, self.length)
        binding, bound = self._bindings.get(rows) or (self._bind_step(rows), 0)
        np.maximum(tokens, 0, out=self._ids[:rows])
        if self._has_positions:
            self._positions[:rows] = lengths - 1
        if self._mask.size < rows * total:
            self._mask = np.zeros(self.slots * total, np.int64)
            self._bindings = {rows: (binding, 0) for rows, (binding, _) in self._bindings.items()}
            bound = 0
        mask = self._mask[: rows * total].reshape(rows, total)
        np.less(self._steps[:total], lengths[:, None], out=mask)
        if bound != total:
            _bind(binding.bind_input, self._layout.attention_mask, mask, (rows, total))
            self._bindings[rows] = binding, total
        self._run(binding)
        return self._logits[:rows].astype(np.float32, copy=False)

    def _bind_step(self, rows: int) -> Any:
        binding, layout = self._bind_cache(0, rows), self._layout
        _bind(binding.bind_input, layout.input_ids, self._ids, (rows, 1))
        if self._has_positions:
            _bind(binding.bind_input, layout.position_ids, self._positions, (rows, 1))
        _bind(binding.bind_output, layout.logits, self._logits, (rows, 1, self.vocabulary))
        return binding

    def _bind_cache(self, start: int, stop: int) -> Any:
        """Return a binding in which the past and the present of some slots are the same memory."""
        binding = self._raw.io_binding()
        onnx = BY_NAME[self._kind].onnx
        names = zip(self._layout.past, self._layout.present, self._cache.tensors, strict=True)
        for past, present, tensor in names:
            part = tensor[start:stop]
            place = "cpu", 0, onnx, part.shape, part.ctypes.data
            binding.bind_input(past, *place)
            binding.bind_output(present, *place)
        return binding

    def _run(self, binding: Any) -> None:
        try:
            self._raw.run_with_iobinding(binding, self._control.options)
        except Exception as error:
            raise run_failure(error, None) from error

    def copy(self, source: int, target: int, length: int) -> None:
        """See `Decoder`."""
        self._cache.copy(source, target, length)

    def read(self, slot: int, start: int, stop: int) -> Array:
        """See `Decoder`."""
        return self._cache.read(slot, start, stop)

    def write(self, slot: int, start: int, block: Array) -> None:
        """See `Decoder`."""
        self._cache.write(slot, start, block)

    def free(self, slot: int) -> None:
        """See `Decoder`."""
        self._cache.free(slot)

    def stop(self) -> None:
        """See `Decoder`."""
        self._control.stop()

    def close(self) -> None:
        """See `Decoder`."""
        self._bindings, self._chunk_bindings = {}, {}
        self._raw = None
        self._session.close()


def token_bytes(config: DecoderConfig, datatype: str) -> int:
    """Return the bytes of the keys and values of one token; `datatype` is that of the cache."""
    item = np.dtype(_memory_dtype(datatype)).itemsize
    return int(len(config.layout.past) * config.heads * config.head_size * item)


def _memory_dtype(datatype: str) -> Any:
    """Return numpy's type of the same size, since it has not all datatypes."""
    return {1: np.uint8, 2: np.float16, 4: np.float32, 8: np.float64}[BY_NAME[datatype].bits // 8]


def _bind(bind: Any, name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Bind memory that must outlive the run."""
    bind(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)
