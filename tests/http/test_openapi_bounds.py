"""The OpenAPI document stays small and its page opens, whatever is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from cohort.http.openapi.document import MAX_OWN_BYTES, at_host, write_document
from cohort.http.openapi.routes import describe_routes, read_routes
from cohort.http.openapi.schemas import MAX_EXAMPLE
from cohort.operating import ServedModel, at_once
from cohort.process.application import create_app
from cohort.settings import Settings
from cohort.tensors import Arrays, TensorSpec
from tests.http.references import resolved

FLOATS = TensorSpec("x", "FP32", ("N", 4))
IMAGE = TensorSpec("image", "FP32", ("N", 3, 224, 224))
SCORES = TensorSpec("scores", "FP32", ("N", 3))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """An application that serves nothing."""
    folder = tmp_path_factory.mktemp("openapi")
    return create_app(settings=Settings(models=folder, state=folder, cache=folder))


def written(app: FastAPI, versions: Sequence[ServedModel], *, needs_key: bool = False) -> bytes:
    """The document with these versions, as who sends no Host header gets it."""
    read = at_once(read_routes(app))
    return at_host(at_once(write_document(read, versions, needs_key=needs_key)), "http", None)


def served(
    inputs: Sequence[TensorSpec] = (FLOATS,),
    outputs: Sequence[TensorSpec] = (SCORES,),
    example: Arrays | None = None,
    model: str = "m",
) -> ServedModel:
    """A version with these tensors."""
    return ServedModel(model, "1", True, inputs, (), outputs, example)


def zeros(spec: TensorSpec, rows: int = 1) -> Arrays:
    """An example for one input."""
    shape = [size if isinstance(size, int) else rows for size in spec.shape or ()]
    return {spec.name: np.zeros(shape, spec.dtype)}


def filled_in(schema: Any) -> int:
    """Return how many values Swagger UI generates for a schema without an example."""
    if not isinstance(schema, dict):
        return 0
    if schema.get("type") == "array":
        return int(max(1, schema.get("minItems", 1)) * filled_in(schema.get("items")))
    forms = [*schema.get("oneOf", ()), *schema.get("anyOf", ())]  # it uses one of them
    inside = sum(map(filled_in, schema.get("properties", {}).values()))
    return inside + max(map(filled_in, forms), default=0) or 1


def values_in(body: Any) -> int:
    """Return how many values a body has."""
    if isinstance(body, dict):
        return sum(map(values_in, body.values()))
    return sum(map(values_in, body)) if isinstance(body, list) else 1


def schemas_and_examples(document: dict[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Each body of a model's own paths, requests and responses."""
    for path, item in document["paths"].items():
        if "{" in path or "post" not in item or "requestBody" not in item["post"]:
            continue
        post = item["post"]
        for place in (post["requestBody"], post["responses"]["200"]):
            for content in place["content"].values():
                examples = [one["value"] for one in content.get("examples", {}).values()]
                yield resolved(document, content["schema"]), examples


LARGE = {
    "image": served([IMAGE], [IMAGE], zeros(IMAGE)),
    "only the response": served([FLOATS], [TensorSpec("mask", "FP32", ("N", 21, 512, 512))]),
    "many rows in the example": served([FLOATS], example=zeros(FLOATS, 100_000)),
    "text": served(
        [TensorSpec("t", "BYTES", ("N",))], example={"t": np.array(["x" * 2**20], np.object_)}
    ),
    "trillions": served([TensorSpec("x", "FP32", ("N", 10**6, 10**6, 10**6))]),
    "nothing of much": served([TensorSpec("x", "FP32", (0, 10**9))], example=None),
    "many dimensions": served([TensorSpec("x", "FP32", (1,) * 10_000)]),
    "ten thousand inputs": served([replace(FLOATS, name=f"x{one}") for one in range(10_000)]),
    "ten thousand outputs": served(
        outputs=[replace(SCORES, name=f"y{one}") for one in range(10_000)]
    ),
    "large together": served(
        [replace(IMAGE, name=f"x{one}", shape=("N", 100)) for one in range(60)]
    ),
    "long names": served([replace(FLOATS, name=f"{one}" + "n" * 2**20) for one in range(3)]),
}


@pytest.mark.parametrize("version", LARGE.values(), ids=LARGE)
def test_no_body_is_filled_in_with_thousands_of_values(app: FastAPI, version: ServedModel) -> None:
    """Examples, schemas and the whole document stay small."""
    document = written(app, [version])
    assert len(document) < 300_000
    count = 0
    for schema, examples in schemas_and_examples(json.loads(document)):
        count += 1
        assert filled_in(schema) <= 2 * MAX_EXAMPLE
        assert all(values_in(body) <= MAX_EXAMPLE + 64 for body in examples)
    assert count >= 6


def test_large_inputs_are_shortened_and_small_ones_are_not(app: FastAPI) -> None:
    """A list of sizes next to an image stays as it was published."""
    sizes = TensorSpec("sizes", "INT64", ("N", 2))
    example = zeros(IMAGE) | {"sizes": np.array([[640, 480]])}
    document = json.loads(written(app, [served([IMAGE, sizes], example=example)]))
    post = document["paths"]["/models/m/predict"]["post"]
    shown = post["requestBody"]["content"]["application/json"]["examples"]["by name"]
    assert shown["value"]["inputs"] == {"image": [[[[0.0]]]], "sizes": [[640, 480]]}
    assert "shortened" in shown["summary"]


def test_a_thousand_models_are_described_in_part(app: FastAPI) -> None:
    """As many as fit are described; the document reports it, and describes any one alone."""
    models = [served(example=zeros(FLOATS), model=f"m{number:04}") for number in range(1000)]
    whole = written(app, models)
    assert len(whole) < MAX_OWN_BYTES + 200_000
    document = json.loads(whole)
    assert "/models/m0000/predict" in document["paths"]
    assert "/models/m0999/predict" not in document["paths"]
    assert " of 1,000 loaded versions" in document["info"]["description"]
    alone = json.loads(written(app, models[-1:]))
    assert "/models/m0999/predict" in alone["paths"]
    assert "loaded versions" not in alone["info"]["description"]


def test_operations_of_similar_names_differ(app: FastAPI) -> None:
    """`a.b` and `a_b` are two models, and no name of an operation can hold the dot."""
    document = json.loads(written(app, [served(model="a.b"), served(model="a_b")]))
    names = [one["operationId"] for item in document["paths"].values() for one in item.values()]
    assert len(names) == len(set(names))


def test_names_from_a_file_stay_in_their_cells(app: FastAPI) -> None:
    """The table and the page around them stay whole for any names of tensors."""
    spec = replace(FLOATS, name="a`|b\n<script>")
    document = json.loads(written(app, [served([spec])]))
    rows = document["paths"]["/models/m/predict"]["post"]["description"].splitlines()
    assert "| input | `a'¦b\\n<script>` | `FP32` | `[N, 4]` |" in rows


@pytest.mark.parametrize(
    ("scheme", "host", "url", "client"),
    [
        ("http", "a.example:9000", "http://a.example:9000/v2", 'Client("a.example:9000")'),
        ("http", "[::1]:8000", "http://[::1]:8000/v2", 'Client("[::1]:8000")'),
        ("https", "a.example", "https://a.example/v2", 'Client(ssl=True, url="a.example")'),
        ("http", "a';rm -rf $HOME;'", "http://localhost:8000/v2", 'Client("localhost:8000")'),
        ("http", "$(reboot)", "http://localhost:8000/v2", 'Client("localhost:8000")'),
        ("http", None, "http://localhost:8000/v2", 'Client("localhost:8000")'),
    ],
)
def test_calls_go_where_the_caller_found_the_server(
    app: FastAPI, scheme: str, host: str | None, url: str, client: str
) -> None:
    """A Host header with a shell's special characters is not put into a command to copy."""
    version = served([IMAGE], [IMAGE], zeros(IMAGE))
    pieces = at_once(write_document(at_once(read_routes(app)), [version]))
    paths = json.loads(at_host(pieces, scheme, host))["paths"]
    about = paths["/v2/models/m/infer"]["post"]["description"]
    assert url in about
    assert client in about


def test_calls_carry_a_key_where_one_is_needed(app: FastAPI) -> None:
    """The key is read from the environment, so that no key is pasted into a page."""
    version = served([IMAGE], [SCORES], zeros(IMAGE))
    document = json.loads(written(app, [version], needs_key=True))
    about = document["paths"]["/v2/models/m/infer"]["post"]["description"]
    assert '-H "X-Api-Key: $COHORT_API_KEY"' in about
    assert 'os.environ["COHORT_API_KEY"]' in about


def test_a_name_from_a_file_ends_no_block(app: FastAPI) -> None:
    """Calls to copy keep the shell's quotes and Markdown's fence closed."""
    spec = replace(IMAGE, name="a'\n```\n$(reboot)")
    document = json.loads(written(app, [served([spec], [SCORES], zeros(spec))]))
    about = document["paths"]["/v2/models/m/infer"]["post"]["description"]
    assert about.count("```") == 4
    assert r"a\u0027\n\u0060\u0060\u0060\n$(reboot)" in about


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")
def test_routes_that_are_read_one_by_one_are_as_fastapi_reads_them(app: FastAPI) -> None:
    """The paths are the same, in the same order, and so are the schemas."""
    whole = get_openapi(title=app.title, version=app.version, routes=app.routes)
    read = json.loads(at_once(read_routes(app)))
    assert read["paths"] == whole["paths"]
    assert list(read["paths"]) == list(whole["paths"])
    assert read["components"] == whole["components"]
    assert (read["info"]["title"], read["openapi"]) == (app.title, whole["openapi"])


def test_others_have_their_turns_while_a_document_is_written(app: FastAPI) -> None:
    """They get a turn after each route, and after each path of each version."""
    reading = read_routes(app)
    read = at_once(read_routes(app))
    routes = json.loads(read)["paths"]
    assert len(list(reading)) >= len(routes)
    versions = [served(model=f"m{number}") for number in range(10)]
    paths = len(json.loads(written(app, versions))["paths"]) - len(routes)
    assert paths == 60
    assert len(list(write_document(read, versions))) == paths + 2 * len(routes) + 1
    assert len(list(describe_routes(read, versions))) == len(routes) + 1
