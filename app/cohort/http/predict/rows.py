"""Small requests of the simple API, answered together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import orjson

from cohort.codec import LONGEST_ID, Asked, RowRequest, RunOutputs, escaped, flat_rows, nested_texts
from cohort.codec.json_body import parse_json
from cohort.http.calls import JSON


class PredictAnswer:
    """A form of response.

    single: Whether the request had `input`, and the only output is written without its name.
    outputs: The outputs that it names; None: it names none.
    identified: Whether it has an id.
    """

    __slots__ = ("identified", "outputs", "single")

    def __init__(
        self, *, single: bool, outputs: tuple[str, ...] | None = None, identified: bool = False
    ) -> None:
        self.single = single
        self.outputs = outputs
        self.identified = identified

    def write(
        self, run: RunOutputs, counts: Sequence[int], ids: Sequence[str | None]
    ) -> Iterable[tuple[bytes, object]] | None:
        """As `RowAnswer.write`, and as `encode_simple` or `encode_prediction`."""
        texts = []
        for array in run.arrays:
            text = nested_texts(array, counts)
            if text is None:
                return None
            texts.append(text)
        before, after = _form(
            run.names, run.model, run.version, run.variant, self.single, self.identified
        )
        form = before + orjson.dumps(int(run.seconds * 1e6) / 1000) + after
        if self.identified:
            texts.insert(len(texts) if self.single else 0, [orjson.dumps(one) for one in ids])
        return zip([form % one for one in zip(*texts, strict=True)], repeat(JSON), strict=False)


@lru_cache(1024)
def _form(
    names: tuple[str, ...], model: str, version: str, variant: str, single: bool, identified: bool
) -> tuple[bytes, bytes]:
    """The response before and after its inference time, with a `%b` for its id and each output."""
    told = {"model": model, "version": version, **({"variant": variant} if variant else {})}
    who = escaped(orjson.dumps(told)[1:-1])
    if identified:
        who += b',"id":%b'
    values = b",".join([escaped(orjson.dumps(name)) + b":%b" for name in names])
    if not single:
        return b"{" + who + b',"outputs":{' + values + b'},"inference_time_ms":', b"}"
    prediction = b"%b" if len(names) == 1 else b"{" + values + b"}"
    return b'{"prediction":' + prediction + b',"inference_time_ms":', b"," + who + b"}"


NAMED, SINGLE = PredictAnswer(single=False), PredictAnswer(single=True)


@lru_cache(256)
def _answer(single: bool, outputs: tuple[str, ...] | None, identified: bool) -> PredictAnswer:
    return PredictAnswer(single=single, outputs=outputs, identified=identified)


def read_predict_rows(body: bytes) -> tuple[Any, RowRequest | None]:
    """Parse a body that may hold rows for one input, a model, its version, outputs and an id.

    Gives the document, and what it asks for; None in the place of that for any other body. Raises
    InvalidInput where the body is not JSON.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_json(body), None  # which says what is wrong
    if document.__class__ is not dict:
        return document, None
    name = id_ = None
    asked: Asked = None
    rows = document.get("input")
    single = rows is not None
    if not single:
        inputs = document.get("inputs")
        if inputs.__class__ is not dict or len(inputs) != 1:
            return document, None
        ((name, rows),) = inputs.items()
    if (found := flat_rows(rows)) is None:
        return document, None
    answer = SINGLE if single else NAMED
    if len(document) > 1:
        get = document.get
        model, version, id_, outputs = get("model"), get("version"), get("id"), get("outputs")
        if outputs is not None:
            outputs = _different_names(outputs)
        if (
            (model is not None and model.__class__ is not str)
            or (id_ is not None and (id_.__class__ is not str or len(id_) > LONGEST_ID))
            or outputs == ()
            or 1 + sum(one is not None for one in (model, version, id_, outputs)) < len(document)
        ):
            return document, None
        asked = model
        if version is not None:
            if version.__class__ is int and version > 0:
                version = str(version)
            elif version.__class__ is not str:
                return document, None
            asked = model, version
        if id_ is not None or outputs is not None:
            answer = _answer(single, outputs, id_ is not None)
    values, count = found
    return document, (asked, name, None, values, count, answer, id_)


def _different_names(value: object) -> tuple[str, ...]:
    """The names in a list of different names; none for anything else."""
    if value.__class__ is not list:
        return ()
    names: list[str] = value
    if any(one.__class__ is not str for one in names) or len(set(names)) < len(names):
        return ()
    return tuple(names)
