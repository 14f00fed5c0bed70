"""`module:callable`: a model that the user's own code makes."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from app.prepare.failures import Misused

MODULE_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_callable_reference(text: str) -> bool:
    """Whether `text` is `module:callable`."""
    return MODULE_CALLABLE.fullmatch(text) is not None


def call(text: str) -> Any:
    """Import the module and call the callable without arguments; what is no function is the model.

    Raises Misused where either is not there; what the user's code raises goes on.
    """
    module_name, _, attribute = text.partition(":")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.split(".")[0] == error.name.split(".")[0]:
            raise Misused(
                f"module {module_name!r} cannot be imported from this folder: run the command "
                "where the module is, or name it as Python does: package.module:function"
            ) from error
        raise Misused(
            f"module {module_name!r} cannot be imported: it needs {error.name!r}, which is not in "
            "the environment; add it with --with PACKAGE, or name your own with --python"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Misused(f"module {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    makes = callable(found) and (isinstance(found, type) or hasattr(found, "__code__"))
    return found() if makes else found
