"""Versions with the properties that requests need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.codec import Selection, is_coalescible
from cohort.codec.detections import detectors_of
from cohort.codec.labels import labellers_of
from cohort.metrics import VersionMetrics
from cohort.registry import BatchEngine, NotedEngine, TextEngine, TokenCounter
from cohort.tensors import TensorSpec

MAX_SELECTIONS = 64
"""Selections of outputs that a version remembers; callers choose the outputs."""


class ServedVersion:
    """One version with the properties that requests need, built once per catalog.

    model, version: The model's name and the version's number.
    engine: Runs its requests.
    noted: The same engine if it uses RequestNotes; else None.
    text: The same engine if it answers in pieces; else None.
    counts: Counts its requests.
    inputs, outputs: The specs, in the model's order.
    optional_inputs: The specs of inputs that a request may leave out.
    labellers: Names the classes of each output; None for an output without names.
    detectors: Detectors of the outputs of boxes.
    sent: The positions of the outputs that are sent if a request names no outputs.
    coalescible: True if small requests can be coalesced.
    target: The data plane's target for its coalesced requests; None: not made yet.
    parts: For each sequence output of the model, the names of the outputs that carry it.
    width, row_bytes: The numbers of a row, and their bytes, if it is coalescible; else 0.
    """

    __slots__ = (
        "_named", "_selections", "coalescible", "counts", "detectors", "engine", "inputs",
        "labellers", "model", "noted", "optional_inputs", "outputs", "parts", "row_bytes", "sent",
        "target", "text", "tokens", "version", "width",
    )  # fmt: skip

    def __init__(
        self, model: str, version: str, engine: BatchEngine, counts: VersionMetrics
    ) -> None:
        self.model = model
        self.version = version
        self.engine = engine
        self.noted = engine if isinstance(engine, NotedEngine) else None
        self.text = engine if isinstance(engine, TextEngine) else None
        self.tokens = engine if isinstance(engine, TokenCounter) else None
        self.counts = counts
        self.inputs: Sequence[TensorSpec] = engine.inputs
        self.optional_inputs: Sequence[TensorSpec] = engine.optional_inputs
        self.outputs: Sequence[TensorSpec] = engine.outputs
        self.sent = [place for place, spec in enumerate(self.outputs) if spec.transportable]
        self.parts: dict[str, list[str]] = {}
        for spec in filter(lambda one: one.part_of, self.outputs):
            self.parts.setdefault(spec.part_of, []).append(spec.name)
        self.coalescible = is_coalescible(self.inputs, self.outputs)
        self.width = int(self.inputs[0].shape[1]) if self.coalescible else 0  # type: ignore[index,arg-type]
        self.row_bytes = self.width * self.inputs[0].dtype.itemsize if self.coalescible else 0
        self.labellers = labellers_of(self.outputs, engine.labels)
        self.detectors = detectors_of(self.outputs)
        self._named = bool(self.detectors) or any(one is not None for one in self.labellers)
        self.target: Any = None
        self._selections: dict[tuple[tuple[str, ...] | None, str], Selection] = {}

    def selection(
        self, names: tuple[str, ...] | None, variant: str, top: int = 0
    ) -> Selection | None:
        """Return the selection of outputs with different names; None: all of them.

        variant: The rollout's variant that chose the version; "": no rollout did.
        top: As in `ResponseTemplate`.

        Returns None if a name is not an output, or if labels need another form of answer.
        """
        found = self._selections.get((names, variant)) or self._select(names, variant)
        if (top > 0 or self._named) and (self.detectors or not (found and found.can_label(top))):
            return None
        return found

    def _select(self, names: tuple[str, ...] | None, variant: str) -> Selection | None:
        by_name = {spec.name: place for place, spec in enumerate(self.outputs)}
        if names is not None and not by_name.keys() >= set(names):
            return None
        positions = self.sent if names is None else [by_name[name] for name in names]
        specs = [self.outputs[position] for position in positions]
        if len(self._selections) >= MAX_SELECTIONS:
            self._selections.clear()
        found = self._selections[names, variant] = Selection(
            self.model, self.version, variant, positions,
            [one.name for one in specs], [one.datatype for one in specs],
            [self.labellers[position] for position in positions],
        )  # fmt: skip
        return found
