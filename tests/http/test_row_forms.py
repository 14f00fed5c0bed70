"""Small requests that share runs get the bytes that they would get alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cohort.codec import RunOutputs
from cohort.errors import InvalidInput
from cohort.http.calls import HEADER_LENGTH, Encoded, Route
from cohort.http.predict.calls import predict_route
from cohort.http.v1.calls import Address, v1_route
from cohort.http.v2.infer import infer_route
from cohort.metrics import VersionMetrics
from cohort.registry import BatchEngine
from cohort.serving import ConcurrencyLimit, Lease
from cohort.serving.observing import RequestCounts
from cohort.serving.served import ServedVersion
from cohort.tensors import BY_NAME, Array, TensorSpec
from tests.engines import ControlledEngine
from tests.fakes import make_metrics

SECONDS = 0.0123456

names = st.sampled_from(["y", "100%", "%b", 'a "quoted" one', "Größe"])
ids = st.text(min_size=1, max_size=5)
texts = st.sampled_from(["a", "null", "100%b", 'a "quoted" one', "Größe", "\0"])
tops = st.sampled_from([0, 0, 0, 1, 2, 9])


@dataclass
class Sent:
    """A request of some rows: its body and headers, and the route that reads it."""

    route: Route
    body: bytes
    headers: Mapping[str, str]


class LeaseOfSeconds(Lease):
    """A lease whose request took the same time always."""

    seconds = SECONDS


@dataclass
class Case:
    """A version's outputs for requests of several rows."""

    version: ServedVersion
    variant: str
    arrays: list[Array]
    counts: list[int]

    def alone(self, sent: Sent, rows: slice) -> Encoded:
        """The response to a request that was not coalesced."""
        lease = LeaseOfSeconds(
            self.version, ConcurrencyLimit(9), RequestCounts(make_metrics()), variant=self.variant
        )
        call = sent.route.reader(sent.headers)(sent.body)
        call.decode(lease)
        return call.encode(lease, [array[rows] for array in self.arrays])

    def together(self, requests: Sequence[Sent]) -> list[Encoded] | None:
        """Return the responses to requests that shared a run, or None if each is answered alone."""
        wanted = []
        for sent in requests:
            form = sent.route.rows(sent.headers)
            assert form is not None
            request = form.read(sent.body)[1]
            if request is None:
                return None
            wanted.append(request)
        (template,) = {one.template for one in wanted}
        selection = self.version.selection(template.outputs, self.variant, template.top)
        if selection is None:
            return None
        arrays = [self.arrays[place] for place in selection.positions]
        counts = [one.rows for one in wanted]
        assert counts == self.counts
        run = RunOutputs(selection, arrays, SECONDS, counts, [one.id for one in wanted])
        written = template.write(run)
        assert written is not None
        return [Encoded(body, headers) for body, headers in written]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Versions with one to three outputs of numbers, with and without labels."""
    labelled = draw(st.booleans())
    called = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    specs, arrays = [], []
    for number, name in enumerate(called):
        datatype = draw(st.sampled_from(["FP32", "FP64", "INT64", "UINT8", "BOOL"]))
        shape = draw(st.lists(st.integers(1, 3), max_size=2))
        size = sum(counts) * int(np.prod(shape))
        array = (np.arange(size) / 3 - number).astype(BY_NAME[datatype].dtype)
        arrays.append(array.reshape(sum(counts), *shape))
        spec = TensorSpec(name, datatype, ("N", *shape))
        if labelled and shape and draw(st.booleans()):
            classes = draw(st.lists(texts, min_size=shape[-1], max_size=shape[-1]))
            named = draw(st.sampled_from([None, 0, 1, 2]))
            least = draw(st.sampled_from([None, 0.5])) if datatype in {"FP32", "FP64"} else None
            spec = replace(spec, classes=tuple(classes), named=named, threshold=least)
        specs.append(spec)
    engine = ControlledEngine([TensorSpec("x", "FP32", ("N", 2))], specs)
    version = ServedVersion("m%s", "7", cast("BatchEngine", engine), cast("VersionMetrics", None))
    return Case(version, draw(st.sampled_from(["", "b%b"])), arrays, counts)


def assert_same(case: Case, send: Callable[[int], Sent], *, labels: bool = True) -> None:
    """Assert that each of a case's requests gets the same both ways.

    labels: True (the default) if responses with labels may be written together.
    """
    requests = [send(count) for count in case.counts]
    at = 0
    together = case.together(requests)
    if together is None:
        reason = ""
        try:
            case.alone(requests[0], slice(0, case.counts[0]))
        except InvalidInput as error:
            reason = str(error)
        assert "'top' asks for labels" in reason or not labels
        return
    for sent, got, count in zip(requests, together, case.counts, strict=True):
        expected = case.alone(sent, slice(at, at := at + count))
        assert got.body == expected.body
        assert dict(got.headers) == dict(expected.headers)


def some_outputs(data: st.DataObject, case: Case) -> list[str] | None:
    """Some of a version's outputs in any order, or none named."""
    every = [spec.name for spec in case.version.outputs]
    asked = data.draw(st.lists(st.sampled_from(every), unique=True))
    return asked or None


@given(cases(), st.data())
def test_predict(case: Case, data: st.DataObject) -> None:
    """One input has its name or not, with or without named outputs and an id."""
    named, identified = data.draw(st.booleans()), data.draw(st.booleans())
    outputs = some_outputs(data, case)
    top, by_query = data.draw(tops), data.draw(st.booleans())
    query = {"top": str(top)} if top and by_query else {}

    def send(count: int) -> Sent:
        rows = [[1.0, 2.0]] * count
        body: dict[str, Any] = {"inputs": {"x": rows}} if named else {"input": rows}
        if outputs is not None:
            body["outputs"] = outputs
        if identified:
            body["id"] = data.draw(ids)
        if top and not by_query:
            body["parameters"] = {"top": top}
        return Sent(predict_route("m", query=query), json.dumps(body).encode(), {})

    assert_same(case, send)


@given(cases(), st.sampled_from(["instances", "inputs"]), tops)
def test_v1(case: Case, key: str, top: int) -> None:
    """Rows and columns give the same both ways."""

    def send(count: int) -> Sent:
        body = json.dumps({key: [[1.0, 2.0]] * count}).encode()
        return Sent(v1_route(Address("m"), {"top": str(top)} if top else {}), body, {})

    assert_same(case, send)


@given(cases(), st.data())
def test_v2(case: Case, data: st.DataObject) -> None:
    """JSON and binary give the same both ways, with or without named outputs and an id."""
    binary, identified = data.draw(st.booleans()), data.draw(st.booleans())
    outputs = some_outputs(data, case)
    as_bytes = [data.draw(st.booleans()) for _ in outputs or ()]
    all_as_bytes = data.draw(st.booleans())
    top = data.draw(tops)

    def send(count: int) -> Sent:
        tail, headers = b"", {}
        tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [count, 2]}
        if binary:
            tail = np.ones((count, 2), "f4").tobytes()
            tensor["parameters"] = {"binary_data_size": len(tail)}
        else:
            tensor["data"] = [1.0, 2.0] * count
        body: dict[str, Any] = {"inputs": [tensor]}
        if outputs is not None:
            body["outputs"] = [
                {"name": name, "parameters": {"binary_data": one}}
                for name, one in zip(outputs, as_bytes, strict=True)
            ]
        elif all_as_bytes:
            body["parameters"] = {"binary_data_output": True}
        if top:
            body.setdefault("parameters", {})["top"] = top
        if identified:
            body["id"] = data.draw(ids)
        head = json.dumps(body).encode()
        if binary:
            headers[HEADER_LENGTH] = str(len(head))
        return Sent(infer_route("m"), head + tail, headers)

    in_bytes = any(as_bytes) if outputs is not None else all_as_bytes
    assert_same(case, send, labels=not in_bytes)
