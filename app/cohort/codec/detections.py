"""Objects detected in pictures: a box, a score and a label for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from cohort.codec.json_outputs import encode_tensor
from cohort.errors import InferenceFailed, InvalidInput, quoted
from cohort.tensors import Array, DetectionSpec, TensorSpec

MAX_OBJECTS = 1 << 18
"""Objects in one response."""

OBJECT_BYTES = 256
"""Estimated cost of writing one object, in bytes of JSON."""

CORNERS = ("xmin", "ymin", "xmax", "ymax")

FORMS: Mapping[str, Callable[[Any], Sequence[Any]]] = {
    "xyxy": lambda box: (box[..., 0], box[..., 1], box[..., 2], box[..., 3]),
    "yxyx": lambda box: (box[..., 1], box[..., 0], box[..., 3], box[..., 2]),
    "xywh": lambda box: (
        box[..., 0], box[..., 1], box[..., 0] + box[..., 2], box[..., 1] + box[..., 3]
    ),
    "cxcywh": lambda box: (
        box[..., 0] - box[..., 2] / 2, box[..., 1] - box[..., 3] / 2,
        box[..., 0] + box[..., 2] / 2, box[..., 1] + box[..., 3] / 2,
    ),
}  # fmt: skip
"""Functions that convert boxes to left, top, right and bottom, by the order of the numbers."""


class Detector:
    """Writer of detected objects from an output of boxes.

    The output is [pictures, boxes, 4] or, for one picture, [boxes, 4].

    place: The position of the output of boxes among all outputs.
    name: The name of that output.

    about: The outputs and options that objects are made from.
    specs: All outputs.
    """

    __slots__ = ("_about", "_places", "name", "place")

    def __init__(self, place: int, about: DetectionSpec, specs: Sequence[TensorSpec]) -> None:
        self._about = about
        self._places = {spec.name: position for position, spec in enumerate(specs)}
        self.place = place
        self.name = specs[place].name

    def work(self, outputs: Sequence[Array]) -> int:
        """Estimate the cost of `texts`, in bytes of JSON."""
        return outputs[self.place].size // 4 * OBJECT_BYTES

    def texts(self, outputs: Sequence[Array], check: Callable[[], None]) -> list[bytes]:
        """Write the objects of each picture as a JSON list, best first.

        outputs: All outputs of the model, in order.
        check: Called for each picture; an error that it raises ends the writing.

        Raises InferenceFailed if the outputs do not fit each other or are not finite. Raises
        InvalidInput for more than MAX_OBJECTS objects.
        """
        about = self._about
        boxes = self._with_pictures(outputs[self.place])
        numbers = boxes[..., :4]
        scores, found = self._scores(outputs, boxes)
        names = self._names(outputs, boxes, found)
        kept = np.ones(scores.shape, np.bool_)
        if about.threshold is not None:
            kept = scores >= about.threshold
        counts = kept.sum(axis=1) if about.top is None else kept.sum(axis=1).clip(max=about.top)
        if (count := int(counts.sum())) > MAX_OBJECTS:
            raise InvalidInput(
                f"{count} objects of output {quoted(self.name)} are more than the {MAX_OBJECTS} "
                "allowed in one request: send fewer pictures, or raise the threshold"
            )
        texts = []
        for picture in range(len(boxes)):
            check()
            places = np.flatnonzero(kept[picture])
            order = np.argsort(-scores[picture][places].astype(np.float64), kind="stable")
            places = places[order][: about.top]
            texts.append(
                self._written(
                    numbers[picture][places],
                    scores[picture][places],
                    None if names is None else names[picture][places],
                )
            )
        return texts

    def _with_pictures(self, array: Array) -> Any:
        array = _plain(array)
        boxes = array[None] if array.ndim == 2 else array
        if boxes.ndim != 3 or boxes.shape[-1] < 4:
            raise self._unfit(f"it has shape {list(array.shape)}, not [pictures, boxes, 4]")
        return boxes

    def _column(self, outputs: Sequence[Array], boxes: Array, place: str | int) -> Any:
        """Return a column of the boxes, or an output.

        The shape is [pictures, boxes] or [pictures, boxes, classes].
        """
        if isinstance(place, int):
            if place >= boxes.shape[-1]:
                raise self._unfit(
                    f"it has {boxes.shape[-1]} columns, so there is not a column {place}"
                )
            return boxes[..., place]
        array = _plain(outputs[self._places[place]])
        if outputs[self.place].ndim == 2:
            array = array[None]
        if array.ndim not in (2, 3) or array.shape[:2] != boxes.shape[:2]:
            shapes = f"{list(boxes.shape)} and {list(array.shape)}"
            raise self._unfit(f"it and {quoted(place)} have shapes {shapes}, with other boxes")
        return array[..., 0] if array.ndim == 3 and array.shape[-1] == 1 else array

    def _scores(self, outputs: Sequence[Array], boxes: Array) -> tuple[Any, Any]:
        """Return the score of each box, and its class if scores have a column per class."""
        scores = self._column(outputs, boxes, self._about.scores)
        if scores.ndim == 2:
            return scores, None
        known = len(self._about.labels) or scores.shape[-1]
        scores = scores[..., :known]
        if not scores.size:
            return np.zeros(scores.shape[:2], scores.dtype), None
        return scores.max(axis=-1), scores.argmax(axis=-1)

    def _names(self, outputs: Sequence[Array], boxes: Array, found: Array | None) -> Any:
        """Return the class of each box, a number or a text; None if boxes have no classes."""
        if self._about.classes is None:
            if found is None and self._about.labels:
                return np.zeros(boxes.shape[:2], np.int64)
            return found
        classes = self._column(outputs, boxes, self._about.classes)
        if classes.ndim == 2:
            return classes
        return classes.argmax(axis=-1) if classes.size else np.zeros(classes.shape[:2], np.int64)

    def _written(self, boxes: Array, scores: Array, names: Array | None) -> bytes:
        corners = FORMS[self._about.form](boxes)
        if self._about.size is not None:
            height, width = self._about.size
            kind = boxes.dtype if boxes.dtype.kind == "f" else np.dtype(np.float64)
            lengths = np.array([width, height, width, height], kind)
            corners = [one / length for one, length in zip(corners, lengths, strict=True)]
        columns = [self._numbers(one) for one in (scores, *corners)]
        if names is not None:
            columns.insert(0, [orjson.dumps(self._label(one)) for one in names.tolist()])
        form = WITHOUT_LABEL if names is None else WITH_LABEL
        return b"[%b]" % b",".join([form % one for one in zip(*columns, strict=True)])

    def _numbers(self, array: Array) -> list[bytes]:
        if not array.size:
            return []
        plain = encode_tensor(self.name, np.ascontiguousarray(array))
        return orjson.dumps(plain, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")

    def _label(self, found: object) -> str:
        if isinstance(found, bytes):
            return found.decode("utf-8", "replace")
        if not isinstance(found, int | float):
            return str(found)
        labels = self._about.labels
        if not np.isfinite(found):
            return str(found)
        place = round(found)
        return labels[place] if 0 <= place < len(labels) else str(place)

    def _unfit(self, why: str) -> InferenceFailed:
        return InferenceFailed(f"detections of output {quoted(self.name)}: {why}")


def _plain(array: Array) -> Array:
    """Convert to a numpy datatype that corners can be computed in."""
    if array.dtype.kind == "V":
        return array.astype(np.float32)
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


_BOX = b",".join(b'"%b":%%b' % name.encode() for name in CORNERS)
WITHOUT_LABEL = b'{"score":%%b,"box":{%b}}' % _BOX
WITH_LABEL = b'{"label":%%b,"score":%%b,"box":{%b}}' % _BOX


def detectors_of(specs: Sequence[TensorSpec]) -> list[Detector]:
    """Return a detector for each output of boxes."""
    return [
        Detector(place, spec.detections, specs)
        for place, spec in enumerate(specs)
        if spec.detections is not None
    ]
