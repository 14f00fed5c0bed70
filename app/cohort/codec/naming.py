"""What a response in JSON says in words beside its outputs: labels, and objects in pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import orjson

from cohort.codec.detections import Detector
from cohort.codec.labels import Labeller, chosen, label_value, labels_work, write_labels
from cohort.codec.predict_response import LARGE_BYTES
from cohort.tensors import Array

Named = Mapping[str, orjson.Fragment]
"""Keys of a response, and what JSON has there."""


class Naming(NamedTuple):
    """What names the outputs of one response.

    labelled: What names classes, with the positions of the outputs.
    detectors: What writes objects.
    top: How many labels of each row were asked for; 0: nothing was said.
    """

    labelled: Sequence[tuple[int, Labeller]]
    detectors: Sequence[Detector]
    top: int

    def is_long(self, outputs: Sequence[Array]) -> bool:
        """Whether writing that takes long."""
        work = labels_work(self.labelled, outputs, self.top) if self.labelled else 0
        return work + sum([one.work(outputs) for one in self.detectors]) > LARGE_BYTES

    def write(self, outputs: Sequence[Array], check: Callable[[], None]) -> Named:
        """Write `labels` and `detections`, of all outputs of the model.

        Raises InvalidInput for more than one request gets, InferenceFailed for what JSON cannot
        carry.
        """
        named: dict[str, orjson.Fragment] = {}
        labels = write_labels(self.labelled, outputs, self.top, check)
        if labels is not None:
            named["labels"] = labels
        if self.detectors:
            found = {one.name: one.texts(outputs, check) for one in self.detectors}
            named["detections"] = label_value(found)
        return named


UNNAMED = Naming((), (), 0)


def naming_of(
    labellers: Sequence[Labeller | None],
    detectors: Sequence[Detector],
    positions: Sequence[int],
    top: int,
) -> Naming:
    """What names the outputs at these positions. Raises InvalidInput as `chosen`."""
    labelled = chosen(labellers, positions, top)
    if not labelled and not detectors:
        return UNNAMED
    return Naming(labelled, [one for one in detectors if one.place in positions], top)
