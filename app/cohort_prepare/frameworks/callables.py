"""Models from the user's code: `module:callable`, and pickles, which also run code."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import Reference

MODULE_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class MissingModule(Misused):
    """The user's code imports `module`, a top-level name that the environment lacks."""

    def __init__(self, what: str, module: str) -> None:
        super().__init__(
            f"{what} cannot be loaded: module {module!r} is missing in the environment; add its "
            "package with --with PACKAGE, or set --python to your environment"
        )
        self.module = module.split(".", maxsplit=1)[0]


def is_callable_reference(text: str) -> bool:
    """Return True if `text` is `module:callable`."""
    return MODULE_CALLABLE.fullmatch(text) is not None


def load_object(reference: Reference) -> Any:
    """Load the model from `module:callable` or from a trusted pickle.

    Raises Misused, and errors of the user's code.
    """
    if is_callable_reference(reference.text):
        return call(reference.text)
    return unpickle(reference)


@cache  # another call may return another object
def call(text: str) -> Any:
    """Import the module and call the callable without arguments; return other objects as they are.

    Raises Misused if either does not exist; errors of the user's code propagate.
    """
    module_name, _, attribute = text.partition(":")
    top = module_name.split(".")[0]

    def load() -> Any:
        try:
            found: Any = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (error.name == top or f"{module_name}.".startswith(f"{error.name}.")):
                raise Misused(
                    f"module {module_name!r} cannot be imported from this folder: run the command "
                    "in the module's folder, or use its full name: package.module:function"
                ) from error
            raise
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise Misused(f"module {module_name!r} has no {attribute!r}")
            found = getattr(found, part)
        makes = callable(found) and (isinstance(found, type) or hasattr(found, "__code__"))
        return found() if makes else found

    return _telling_what_is_missing(load, f"module {module_name!r}")


def unpickle(reference: Reference) -> Any:
    """Load a trusted pickle, including one of joblib or cloudpickle.

    Raises Misused if it is not trusted, and errors of the pickle.
    """
    if not reference.trust_pickle:
        raise Misused(
            f"{reference.text} is a pickle, which can run arbitrary code: add --trust-pickle if "
            "you made it, or use module:callable"
        )

    def load() -> Any:
        import joblib

        return joblib.load(reference.text)

    return _telling_what_is_missing(load, reference.text)


def _telling_what_is_missing(load: Callable[[], Any], what: str) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        raise MissingModule(what, error.name or str(error)) from error
