"""What an operator may say about one model: `models/<name>/config.yaml`.

The policies are fields here as the modules they govern declare them, so that every option is
declared once. A file is read whole before anybody is told: all its problems come at once.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    ScalarEvent,
)

from app.batching import BatchPolicy
from app.errors import CohortError, ConfigInvalid, did_you_mean, quoted
from app.session import DEFAULT_CHAIN, Provider, ProviderPolicy, SessionOptions, parse_provider

FILE = "config.yaml"

MOST_BYTES = 64 * 1024
"""A config is a page; reading YAML is slow enough that a larger file would hold the server up."""

MOST_VALUES = 10_000
"""With every alias written out, against files that grow a billion values from ten lines."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong in one place on disk: the file, the key's path in it, and what to do.

    `file` is relative to the models folder; `key` is empty where the file as a whole is meant.
    """

    file: str
    key: str
    sentence: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.key, self.sentence) if part)


class ConfigProblems(ConfigInvalid):
    """Everything that is wrong in one file; `str(error)` has one line for each problem."""

    def __init__(self, problems: Collection[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(first.file, first.key, first.sentence)
        self.message = "\n".join(str(problem) for problem in self.problems)


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """`versions:` in a model's config: exactly those in `only`, or else the `latest` highest.

    `latest` 0 stands for all of them.
    """

    latest: int = 1
    only: tuple[int, ...] = ()

    def wanted(self, on_disk: Collection[int]) -> frozenset[int]:
        """Say which of the versions on disk should be loaded."""
        if self.only:
            return frozenset(self.only).intersection(on_disk)
        return frozenset(sorted(on_disk)[-self.latest :])


@dataclass(frozen=True, slots=True)
class WarmUp:
    """`warm_up:` in a model's config: run once with as many rows each before taking traffic."""

    rows: tuple[int, ...] = (1, 8)


def _parse_versions(value: object) -> VersionPolicy:
    if value == "all":
        return VersionPolicy(latest=0)
    if isinstance(value, dict) and list(value) == ["latest"]:
        if _is_version(value["latest"]):
            return VersionPolicy(latest=value["latest"])
        raise _sentence(f"latest must be a whole number from 1, not {_show(value['latest'])}")
    if isinstance(value, list) and value:
        for one in value:
            if not _is_version(one):
                raise _sentence(f"a version is a whole number from 1, not {_show(one)}")
        return VersionPolicy(only=tuple(sorted(set(value))))
    raise _sentence(
        f"must be {{latest: 2}}, all, or a list of versions such as [1, 3], not {_show(value)}"
    )


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**18


def _parse_link(value: object) -> Provider:
    try:
        return parse_provider(value)
    except CohortError as error:
        raise _sentence(getattr(error, "problem", "") or str(error)) from None


def _sentence(text: str) -> PydanticCustomError:
    return PydanticCustomError("said", "{text}", {"text": text})


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`models/<name>/config.yaml`. Every key is optional.

    A request waits for at most `timeout_ms`, or less where its caller says so.
    """

    providers: tuple[Annotated[Provider, PlainValidator(_parse_link)], ...] = DEFAULT_CHAIN
    provider_policy: ProviderPolicy = "prefer"
    versions: Annotated[VersionPolicy, PlainValidator(_parse_versions)] = VersionPolicy()
    session: SessionOptions = field(default_factory=SessionOptions)
    batching: BatchPolicy = field(default_factory=BatchPolicy)
    timeout_ms: float = 30_000.0
    warm_up: WarmUp = WarmUp()


class Range(NamedTuple):
    """What a number may be, both ends included."""

    low: float
    high: float
    why: str = ""


A_DAY_MS = 86_400_000

RANGES: Mapping[str, Range] = {
    "session.intra_op_threads": Range(0, 1024, "0 lets ONNX Runtime choose"),
    "batching.max_batch_size": Range(1, 2**20, "1 turns batching off"),
    "batching.max_queue_delay_ms": Range(0, A_DAY_MS, "0 never waits on purpose"),
    "batching.max_queue_size": Range(1, 2**20),
    "batching.latency_budget_ms": Range(0.001, A_DAY_MS),
    "batching.pad.*.axis": Range(1, 64, "axis 0 holds the rows"),
    "batching.pad.*.multiple": Range(1, 2**20, "1 pads to the longest"),
    "timeout_ms": Range(1, A_DAY_MS),
    "warm_up.rows.*": Range(1, 2**20),
}
"""By path, where `*` is any name or position."""


def load_model_config(folder: Path) -> ModelConfig:
    """Read the config of the model in `folder`; without a file, or with an empty one, the defaults.

    Raises ConfigProblems, a ConfigInvalid that holds all problems of the file.
    """
    file = f"{folder.name}/{FILE}"
    text = read_text(folder / FILE, file)
    return ModelConfig() if text is None else parse_model_config(text, file)


def parse_model_config(text: str, file: str) -> ModelConfig:
    """Read the text of a config; `file` is what messages call it. Raises ConfigProblems."""
    tree = _named(parse_yaml(text, file))
    if tree is None:
        return ModelConfig()
    problems = []
    try:
        # As JSON, because there a strict check takes a list for a tuple.
        config = _adapter().validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        problems = [_explain(details, file) for details in error.errors(include_url=False)]
    else:
        if not config.providers:
            problems = [Problem(file, "providers", "must name at least one, such as [cpu]")]
    problems += _find_out_of_range(tree, file)
    if problems:
        raise ConfigProblems(problems)
    return config


@cache
def _adapter() -> TypeAdapter[ModelConfig]:
    return TypeAdapter(ModelConfig)


def read_text(path: Path, file: str, *, most: int = MOST_BYTES) -> str | None:
    """Read an operator's file, None where there is none; `file` is what messages call it.

    Raises ConfigProblems for anything that is no readable UTF-8 text of at most `most` bytes.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise _whole(file, "must be a file; move away what is there")
        if found.st_size > most:
            raise _whole(file, f"is too large: {found.st_size} bytes, at most {most} are read")
        with path.open("rb") as opened:
            return opened.read(most).decode("utf-8-sig")
    except FileNotFoundError:
        if path.is_symlink():
            raise _whole(file, "is a link to nothing; mend or remove it") from None
        return None
    except UnicodeDecodeError:
        raise _whole(file, "is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise _whole(file, f"cannot be read: {error.strerror or 'I/O error'}") from None


def parse_yaml(text: str, file: str) -> Any:
    """Read YAML 1.2: no tags of our own, no duplicate keys, aliases within reason.

    Raises ConfigProblems; nothing else leaves here, whatever the text is.
    """
    try:
        if "*" in text and _count_values(YAML(typ="safe", pure=True).parse(text)) > MOST_VALUES:
            raise _whole(file, "its aliases refer to themselves or grow without bounds")
        return YAML(typ="safe", pure=True).load(text)
    except ConfigProblems:
        raise
    except MarkedYAMLError as error:
        raise _whole(file, _explain_yaml(error)) from None
    except RecursionError:
        raise _whole(file, "is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - a tag's constructor raises whatever it likes
        line = str(error).strip().partition("\n")[0]
        raise _whole(file, f"is not YAML: {quoted(line or type(error).__name__)}") from None


def _whole(file: str, sentence: str) -> ConfigProblems:
    return ConfigProblems([Problem(file, "", sentence)])


def _explain_yaml(error: MarkedYAMLError) -> str:
    problem = str(error.problem or error.context or "cannot be understood").partition("\n")[0]
    if twice := re.match(r'found duplicate key "(.*?)"', problem):
        problem = f"the key {quoted(twice[1])} is there twice; keep one"
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}: {problem.strip()}" if mark else problem.strip()


def _count_values(events: Iterator[Event]) -> float:
    """Count a document's values with every alias written out; infinite where one holds itself."""
    sizes: dict[str, float] = {}
    open_nodes: list[tuple[str | None, float]] = [(None, 0)]
    for event in events:
        if isinstance(event, CollectionEndEvent):
            anchor, size = open_nodes.pop()
        elif isinstance(event, CollectionStartEvent):
            if event.anchor:
                sizes[event.anchor] = float("inf")  # until its end has been seen
            open_nodes.append((event.anchor, 1))
            continue
        elif isinstance(event, AliasEvent):
            anchor, size = None, sizes.get(event.anchor, 0)
        elif isinstance(event, ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            continue
        if anchor:
            sizes[anchor] = size
        around, total = open_nodes[-1]
        open_nodes[-1] = (around, total + size)
    return open_nodes[0][1]


def _named(tree: object) -> object:
    """Turn every key into text: an input may well be called 0, and no key must get lost."""
    if isinstance(tree, dict):
        return {str(_named(key)): _named(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_named(value) for value in tree]
    if isinstance(tree, str):
        return tree.encode(errors="replace").decode()  # half a surrogate pair is no text
    return tree


def _find_out_of_range(
    tree: object, file: str, path: tuple[object, ...] = (), pattern: str = ""
) -> Iterator[Problem]:
    """Compare the numbers as they stand in the file, so that other mistakes hide none of these."""
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in items:
            for step in (str(key), "*"):
                below = f"{pattern}.{step}" if pattern else step
                if any(known == below or known.startswith(f"{below}.") for known in RANGES):
                    yield from _find_out_of_range(value, file, (*path, key), below)
    elif isinstance(tree, int | float) and not isinstance(tree, bool) and pattern in RANGES:
        low, high, why = RANGES[pattern]
        # NaN and infinity are told by their type.
        if not low <= tree <= high and abs(tree) < float("inf"):
            because = f" ({why})" if why else ""
            yield Problem(
                file,
                _dotted(path),
                f"must be from {low:g} to {_plain(high)}{because}, not {_show(tree)}",
            )


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _explain(details: ErrorDetails, file: str) -> Problem:
    kind, location, value = details["type"], details["loc"], details["input"]
    if kind == "unexpected_keyword_argument":
        known = _keys_at(ModelConfig, location[:-1])
        help_ = did_you_mean(str(location[-1]), known)
        return Problem(file, _dotted(location), f"there is no such key{help_}")
    if kind == "said":
        return Problem(file, _dotted(location), details["msg"])
    if value is None:
        return Problem(file, _dotted(location), "is empty; give it a value or leave the key out")
    if kind == "literal_error":
        choices = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        names = choices.split(", ")
        close = did_you_mean(value, names) if isinstance(value, str) and len(names) > 8 else ""
        sentence = f"must be one of {choices}, not {_show(value)}{close}"
        return Problem(file, _dotted(location), sentence)
    wanted = WANTED.get(kind)
    if kind in {"dataclass_type", "dict_type", "mapping_type"}:
        keys = ", ".join(sorted(_keys_at(ModelConfig, location)))
        wanted = f"keys with values ({keys})" if keys else "keys with values"
    if wanted is None:
        return Problem(file, _dotted(location), details["msg"].replace("Input", "it"))
    return Problem(file, _dotted(location), f"must be {wanted}, not {_show(value)}")


WANTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
}


def _keys_at(kind: Any, path: tuple[int | str, ...]) -> list[str]:
    """Name the keys that a file may have at `path`, none where any name will do."""
    for step in path:
        if get_origin(kind) is Annotated:
            return []
        if is_dataclass(kind):
            kind = get_type_hints(kind, include_extras=True)[str(step)]
        elif arguments := get_args(kind):
            kind = arguments[1] if isinstance(step, str) else arguments[0]
    return [one.name for one in fields(kind)] if is_dataclass(kind) else []


def _dotted(path: tuple[object, ...]) -> str:
    steps = [
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in path if step != "[key]"
    ]
    return "".join(steps).removeprefix(".")


def _show(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "keys with values"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    return str(value)[:80]


__all__ = [
    "ConfigProblems",
    "ModelConfig",
    "Problem",
    "VersionPolicy",
    "WarmUp",
    "load_model_config",
    "parse_model_config",
    "parse_yaml",
    "read_text",
]
