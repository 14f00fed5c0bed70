"""The public surface of this tree: routes, calls, settings, keys, metrics, commands and names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cohort
from cohort.cli import options
from cohort.cli.frame import STOPPED
from cohort.errors import CohortError
from cohort.http.errors import HTTP_STATUS
from cohort.rpc.errors import GRPC_STATUS
from cohort.settings import Settings, default_in_words, variable
from tests.deploy.promql import documented_metrics
from tools.reference.schemas import CONFIG, KEYS, PIPELINE, RECIPE, ROLLOUTS, Schema, schema_of
from tools.release.commands import command_items
from tools.release.facts import Facts, Items, schema_items, text_mark
from tools.release.grpc_calls import grpc_items

FILES = (CONFIG, PIPELINE, ROLLOUTS, KEYS, RECIPE)

PUBLIC = {"create_app": cohort.create_app, "Runtime": cohort.Runtime}


@dataclass(frozen=True)
class Surface:
    """The names that callers and operators rely on, with their facts.

    version: The version that has this surface; "" for the present tree.
    groups: Names and their facts, by groups such as `settings`.
    """

    version: str
    groups: Mapping[str, Items]


@cache
def present_surface() -> Surface:
    """Collect the surface of this tree with default settings."""
    groups = {
        "routes": route_items(),
        "calls": grpc_items(),
        "errors": dict(_errors()),
        "settings": dict(_settings()),
        "keys": dict(_keys()),
        "metrics": dict(_metrics()),
        "commands": {**command_items(), **_exit_statuses()},
        "python": dict(_python()),
    }
    return Surface("", {group: dict(sorted(items.items())) for group, items in groups.items()})


def route_items() -> dict[str, Facts]:
    """Return each route, and its parameters, bodies and answers, from the OpenAPI document.

    `POST /a ?b` is a parameter, `POST /a < application/json.b` a key of a request, and
    `POST /a > 200 application/json.b` one of an answer. The bodies of errors are alike for all
    routes: `error > 400 application/json.code`.
    """
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one function serves GET and HEAD
        here = Path(folder)
        document = cohort.create_app(
            settings=Settings(models=here, state=here, cache=here, rollouts=here / "rollouts.yaml")
        ).openapi()
    definitions = {
        f"#/components/{kind}/{name}": part
        for kind, parts in document["components"].items()
        for name, part in parts.items()
    }
    found: dict[str, Facts] = {}
    for status, answer in document["components"]["responses"].items():
        found |= _contents(f"error > {status}", answer, definitions)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            found |= _route(f"{method.upper()} {path}", operation, definitions)
    return found


def _route(route: str, operation: Schema, definitions: Schema) -> Iterator[tuple[str, Facts]]:
    yield route, {}
    for part in operation.get("parameters", ()):
        given = definitions.get(part.get("$ref"), part)
        facts = {"in": given["in"], "required": given.get("required", False)}
        yield f"{route} ?{given['name']}", facts
    body = operation.get("requestBody", {})
    yield from _contents(f"{route} <", body, definitions)
    for status, answer in operation.get("responses", {}).items():
        yield f"{route} > {status}", {}
        for header in answer.get("headers", {}):
            yield f"{route} > {status} header {header}", {}
        yield from _contents(f"{route} > {status}", answer, definitions)


def _contents(name: str, part: Schema, definitions: Schema) -> Iterator[tuple[str, Facts]]:
    for kind, content in part.get("content", {}).items():
        yield f"{name} {kind}", {}
        yield from schema_items(content.get("schema", {}), f"{name} {kind}", definitions)


def _errors() -> Iterator[tuple[str, Facts]]:
    for kind in {**HTTP_STATUS, **GRPC_STATUS}:
        if kind.__module__ == CohortError.__module__:
            http, grpc = HTTP_STATUS.get(kind), GRPC_STATUS.get(kind)
            facts = {"http": http and http.value, "grpc": grpc and grpc.name}
            yield kind.__name__, {name: value for name, value in facts.items() if value}


def _settings() -> Iterator[tuple[str, Facts]]:
    schema = Settings.model_json_schema()
    definitions = {f"#/$defs/{name}": part for name, part in schema.get("$defs", {}).items()}
    for name, facts in schema_items(schema, "", definitions):
        key, dot, rest = name[1:].partition(".")
        words = default_in_words(key)
        if words and not dot:  # a default that the environment decides is a text
            facts |= {"text": text_mark(f"{Settings.model_fields[key].description} {words}")}
            facts.pop("default", None)
        yield f"{variable(key)}{dot}{rest}", facts


def _keys() -> Iterator[tuple[str, Facts]]:
    for file in FILES:
        yield file.name, {}
        yield from schema_items(schema_of(file), file.name, {})


def _metrics() -> Iterator[tuple[str, Facts]]:
    for metric in documented_metrics():
        yield metric.name, {"kind": metric.kind, "labels": sorted(metric.labels)}


def _exit_statuses() -> dict[str, Facts]:
    statuses = {
        "good": options.OK,
        "problems": options.PROBLEMS,
        "misused": options.MISUSED,
        "stopped by Ctrl-C": STOPPED,
    }
    return {f"exit status: {name}": {"status": status} for name, status in statuses.items()}


def _python() -> Iterator[tuple[str, Facts]]:
    for name, public in PUBLIC.items():
        yield f"cohort.{name}", {}
        yield from _parameters(f"cohort.{name}", public)
        for method in vars(public) if inspect.isclass(public) else ():
            if not method.startswith("_"):
                yield f"cohort.{name}.{method}", {}
                yield from _parameters(f"cohort.{name}.{method}", getattr(public, method))


def _parameters(name: str, function: Any) -> Iterator[tuple[str, Facts]]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name != "self" and callable(function):
            needed = parameter.default is parameter.empty and parameter.kind not in {
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            }
            yield f"{name} {parameter.name}", {"kind": parameter.kind.name, "required": needed}
