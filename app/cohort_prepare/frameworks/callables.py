"""Models that the user's own code makes: `module:callable`, and pickles, which are code, too."""

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
    """The user's code imports `module`, the top one's name, which is not in the environment."""

    def __init__(self, what: str, module: str) -> None:
        super().__init__(
            f"{what} cannot be loaded: it needs {module!r}, which is not in the environment; add "
            "it with --with PACKAGE, or name your own with --python"
        )
        self.module = module.split(".", maxsplit=1)[0]


def is_callable_reference(text: str) -> bool:
    """Whether `text` is `module:callable`."""
    return MODULE_CALLABLE.fullmatch(text) is not None


def load_object(reference: Reference) -> Any:
    """The model, by `module:callable` or from a pickle that is trusted.

    Raises Misused, and what the user's code raises.
    """
    if is_callable_reference(reference.text):
        return call(reference.text)
    return unpickle(reference)


@cache  # at the next call, it may give another one
def call(text: str) -> Any:
    """Import the module and call the callable without arguments; what is no function is the model.

    Raises Misused where either is not there; what the user's code raises goes on.
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
                    "where the module is, or name it as Python does: package.module:function"
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
    """The model in a pickle, also one of joblib or cloudpickle, if that is trusted.

    Raises Misused where it is not, and what the pickle raises.
    """
    if not reference.trust_pickle:
        raise Misused(
            f"{reference.text} is a pickle, and reading one runs what is in it: add "
            "--trust-pickle if you made it, or name the model as module:callable"
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
