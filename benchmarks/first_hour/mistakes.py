"""Mistakes that people make, each with the words of which an explanation has one."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

RIGHT = "[[5.1, 3.5, 1.4, 0.2]]"


@dataclass(frozen=True, slots=True)
class Mistake:
    """A request that is not right. `features` is JSON; `body`, where given, replaces all of it."""

    what: str
    words: tuple[str, ...]
    features: str = RIGHT
    name: str = "features"
    body: bytes | None = None
    method: str = "POST"
    content_type: str = "application/json"
    path: str = ""


IN_REQUESTS = (
    Mistake("three numbers where the model takes four", ("4",), "[[5.1, 3.5, 1.4]]"),
    Mistake("a row that is not in a list", ("list", "shape", "dimension"), "[5.1, 3.5, 1.4, 0.2]"),
    Mistake("a level of lists too many", ("list", "shape", "dimension"), f"[{RIGHT}]"),
    Mistake("rows of different length", ("length", "shape"), "[[5.1, 3.5, 1.4, 0.2], [5.1]]"),
    Mistake("no rows", ("empty", "row", "shape"), "[]"),
    Mistake("the wrong name of the input", ("features",), name="feature"),
    Mistake("a word for a number", ("number", "float", "string"), '[["long", 3.5, 1.4, 0.2]]'),
    Mistake("null for a number", ("null", "None", "number"), "[[null, 3.5, 1.4, 0.2]]"),
    Mistake("NaN for a number", ("NaN", "JSON"), "[[NaN, 3.5, 1.4, 0.2]]"),
    Mistake("an object for a row", ("list", "object", "dict"), '[{"length": 5.1, "width": 3.5}]'),
    Mistake("a number for the rows", ("list", "shape", "dimension"), "5.1"),
    Mistake("null for the rows", ("null", "list", "None"), "null"),
    Mistake("an empty body", ("empty", "JSON", "body"), body=b""),
    Mistake("half of the JSON", ("JSON",), body=b'{"features": [[5.1, '),
    Mistake("a list where an object belongs", ("object", "dict"), body=RIGHT.encode()),
    Mistake("bytes that are not UTF-8", ("UTF-8", "utf-8", "JSON"), body=b'{"features": "\xff"}'),
    Mistake(
        "an HTML form", ("JSON", "json", "Content-Type", "content-type"), body=b"features=5.1",
        content_type="application/x-www-form-urlencoded",
    ),
    Mistake("80 MB", ("large", "limit", "MB", "MiB"), body=b" " * 80_000_000),
    Mistake("GET for POST", ("POST", "ethod"), method="GET"),
    Mistake("a wrong path", ("ound",), path="/predikt"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """The content in place of model.onnx; with `start` its first bytes, with None no file."""

    what: str
    words: tuple[str, ...]
    content: bytes | None = None
    start: int = 0


AT_START = (
    BrokenFile("no model file", ("model.onnx",)),
    BrokenFile("half a model file", ("truncated", "parsing failed"), start=10_000),
    BrokenFile("a pickle", ("ickle", "PICKLE"), pickle.dumps({"a": 1})),
    BrokenFile(
        "an HTML page", ("HTML", "web page"), b"<!DOCTYPE html><html><body>Sign in</body></html>"
    ),
    BrokenFile(
        "a pointer of Git LFS", ("LFS",),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 20000\n",
    ),
)  # fmt: skip
