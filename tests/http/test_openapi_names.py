"""Names of classes in generated clients, which stay the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from cohort.http.openapi.schemas import element
from cohort.tensors import DATATYPES
from tests.http.test_openapi_bounds import FLOATS, SCORES, app, served, written, zeros

__all__ = ["app"]


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema, and all in it."""
    if isinstance(schema, list):
        for one in schema:
            yield from parts(one)
    elif isinstance(schema, dict):
        yield schema
        for one in schema.values():
            yield from parts(one)


def test_names_do_not_depend_on_what_else_is_loaded(app: Any) -> None:
    """A model that equals another one has its own classes, with the same names as alone."""
    first, second = (served(example=zeros(FLOATS), model=name) for name in ("a", "b"))
    alone, both = (json.loads(written(app, models)) for models in ([second], [first, second]))
    for name, item in alone["paths"].items():
        if "/models/b/" in name or "/models/b:" in name:
            assert both["paths"][name] == item
    schemas = alone["components"]["schemas"]
    assert len([name for name in schemas if "_b_predict" in name]) > 4
    for name, schema in schemas.items():
        assert both["components"]["schemas"][name] == schema


def test_objects_are_components_and_enumerations_have_a_type(app: Any) -> None:
    """openapi-generator makes up names for objects within, and no code of values without a type."""
    models = [served([FLOATS], [FLOATS, SCORES], zeros(FLOATS)), served(model="b")]
    document = json.loads(written(app, models))
    own = [item for path, item in document["paths"].items() if re.search("/models/[bm]/", path)]
    assert own
    for item in own:
        for part in parts(item["post"]["requestBody"]):
            assert not isinstance(part.get("properties"), dict)
    for part in parts([document["components"]["schemas"], document["paths"]]):
        assert "enum" not in part or _of_one_type(part), part


def _of_one_type(schema: dict[str, Any]) -> bool:
    return len({type(one) for one in schema["enum"]} - {type(None)}) == 1 and (
        None not in schema["enum"] or "null" in schema["type"]
    )


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda one: str(one.name))
def test_bounds_are_numbers_that_clients_can_hold(datatype: Any) -> None:
    """None has more digits than 64 bits, however it is written."""
    bounds = [value for value in element(datatype.name).values() if not isinstance(value, str)]
    assert all(abs(int(value)) < 2**64 for value in bounds)
