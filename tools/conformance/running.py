"""Run cases in this process, then over the wire against a separate server process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnxruntime

from cohort.errors import CohortError
from cohort.session import Provider, open_session
from tests.e2e.processes import cohort, free_port
from tests.onnx_models import ELEMENT_TYPES
from tools.conformance.clients import Ask, Clients, Refused
from tools.conformance.exceptions import Result
from tools.conformance.suite import Case, Sample, Value, difference

DATATYPES = {number: name for name, number in ELEMENT_TYPES.items()}

# One server holds this many at a time: it stays small, and one that dies costs few.
TOGETHER = 450  # models

CONFIG = "providers: [cpu]\n"  # the tolerances are for it; all else is default


def problem_in_process(case: Case) -> str:
    """Return why the case fails without a server; "" if it passes."""
    try:
        if not case.only_tensors:
            return _problem_of_plain_run(case)
        session = open_session(case.model, chain=[Provider("cpu")])
    except Exception as error:  # noqa: BLE001 - whatever it is, the case does not pass
        return str(error) or type(error).__name__
    names = {spec.name for spec in session.inputs}
    for sample in case.samples():
        feeds = {name: value for name, value in sample.inputs.items() if name in names}
        try:
            outputs = session.run(feeds)
        except CohortError as error:
            return str(error)
        got = {spec.name: output for spec, output in zip(session.outputs, outputs, strict=True)}
        if said := _compare(sample.outputs, got):
            return said
    return ""


def _problem_of_plain_run(case: Case) -> str:
    """Do the same for sequences and optionals, which Cohort's session does not support."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for sample in case.samples():
        got = dict(zip(names, session.run(None, dict(sample.inputs)), strict=True))
        if said := _compare(sample.outputs, got):
            return said
    return ""


def _compare(expected: Mapping[str, Value], got: Mapping[str, Value]) -> str:
    if missing := expected.keys() - got.keys():
        return f"output {min(missing)!r} is missing"
    for name, value in expected.items():
        if said := difference(value, got[name]):
            return f"output {name!r} {said}"
    return ""


def over_the_wire(cases: Sequence[Case], folder: Path) -> Iterator[Result]:
    """Load each case in a real server and send its inputs in every form."""
    for start in range(0, len(cases), TOGETHER):
        some = cases[start : start + TOGETHER]
        place = folder / f"from-{start}"
        models = place / "models"
        for case in some:
            version = models / case.name / "1"
            version.mkdir(parents=True)
            shutil.copy(case.model, version / "model.onnx")
            (version.parent / "config.yaml").write_text(CONFIG)
        with cohort(models, place, ready=False, watch_seconds=0, grpc_port=free_port()) as server:
            server.wait_for("/health/ready")
            clients = Clients(server.url, server.grpc)
            try:
                for case in some:
                    yield from _ask(case, clients)
            finally:
                clients.close()
            server.stop()
        shutil.rmtree(place)


def _ask(case: Case, clients: Clients) -> Iterator[Result]:
    samples = list(case.samples())
    for form, ask in clients.forms.items():
        try:
            problem = next((said for one in samples if (said := _differs(case, one, ask))), "")
        except Refused as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a connection that broke is the case's result
            problem = f"{type(error).__name__}: {error}"
        yield Result(case.name, form, problem)


def _differs(case: Case, sample: Sample, ask: Ask) -> str:
    datatypes = {one.name: DATATYPES[one.type.tensor_type.elem_type] for one in case.inputs}
    inputs = {name: value for name, value in sample.inputs.items() if name in datatypes}
    return _compare(sample.outputs, ask(case.name, inputs, datatypes))
