"""The decoder of a plain export, whose graph gives new arrays of keys and values in each run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cohort.generative.config import DecoderConfig
from cohort.generative.decoder import token_bytes
from cohort.session import OrtRunControl, Session
from cohort.tensors import Array


class PlainDecoder:
    """A decoder that computes its sequences one by one. Implements `Decoder`.

    The outputs of a run are the inputs of the next one. The graph copies them, and rows of
    different length cannot share a run.

    The parameters are those of `SharedDecoder`.
    """

    def __init__(self, session: Session, config: DecoderConfig, slots: int, length: int) -> None:
        self._session, self._layout = session, config.layout
        self.slots, self.length = slots, length
        self._control = OrtRunControl()
        specs = {spec.name: spec for spec in session.inputs}
        past = specs[config.layout.past[0]]
        self.token_bytes = token_bytes(config, past.datatype)
        outputs = {spec.name: number for number, spec in enumerate(session.outputs)}
        shape = session.outputs[outputs[config.layout.logits]].shape or (0,)
        self._logits = outputs[config.layout.logits]
        self._present = [outputs[name] for name in config.layout.present]
        self._has_positions = config.layout.position_ids in specs
        self._empty = np.zeros((1, config.heads, 0, config.head_size), past.dtype)
        self._past: list[list[Array]] = [[] for _ in range(slots)]
        self.vocabulary = shape[-1] if isinstance(shape[-1], int) else 0
        if not self.vocabulary:
            self.vocabulary = len(self.prefill(0, [0], 0))
        self.free(0)

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> Array:
        """See `Decoder`."""
        layout, total = self._layout, start + len(tokens)
        feeds = dict(zip(layout.past, self._first(slot, start), strict=True))
        feeds[layout.input_ids] = np.array([tokens], np.int64)
        feeds[layout.attention_mask] = np.ones((1, total), np.int64)
        if self._has_positions:
            feeds[layout.position_ids] = np.arange(start, total, dtype=np.int64)[None]
        outputs = self._session.run(feeds, self._control)
        self._past[slot] = [outputs[number] for number in self._present]
        return np.asarray(outputs[self._logits][0, -1], np.float32)

    def decode(self, tokens: Array, lengths: Array) -> Array:
        """See `Decoder`."""
        logits = np.zeros((len(tokens), self.vocabulary), np.float32)
        for slot, (token, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
            if token >= 0:
                logits[slot] = self.prefill(slot, [token], length - 1)
        return logits

    def copy(self, source: int, target: int, length: int) -> None:
        """See `Decoder`."""
        self._past[target] = self._first(source, length)

    def read(self, slot: int, start: int, stop: int) -> Array:
        """See `Decoder`."""
        return np.concatenate([one[:, :, start:stop] for one in self._past[slot]])

    def write(self, slot: int, start: int, block: Array) -> None:
        """See `Decoder`."""
        past = self._first(slot, start)
        self._past[slot] = [
            np.concatenate([one, part[None]], 2) for one, part in zip(past, block, strict=True)
        ]

    def _first(self, slot: int, count: int) -> list[Array]:
        """Return the keys and values of the first `count` tokens of a slot."""
        if not count:
            return [self._empty] * len(self._present)
        past = self._past[slot]
        return past if past[0].shape[2] == count else [one[:, :, :count] for one in past]

    def free(self, slot: int) -> None:
        """See `Decoder`."""
        self._past[slot] = []

    def stop(self) -> None:
        """See `Decoder`."""
        self._control.stop()

    def close(self) -> None:
        """See `Decoder`."""
        self._past = [[] for _ in range(self.slots)]
        self._session.close()
