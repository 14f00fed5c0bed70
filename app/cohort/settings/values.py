"""Readers and checks of settings, and defaults that depend on the machine."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from cohort.errors import quoted
from cohort.system.processor import cores
from cohort.system.remote_address import check_remote, is_remote

MIN_WATCHDOG_SECONDS = 1.0
"""A busy machine blocks an event loop for less."""


def default_state() -> Path:
    """Return the user's folder for the server's decisions."""
    return _user_folder("XDG_STATE_HOME", ".local/state", "Library/Application Support")


def default_cache() -> Path:
    """Return the user's folder for files that can be made again."""
    return _user_folder("XDG_CACHE_HOME", ".cache", "Library/Caches")


def _user_folder(xdg: str, linux: str, macos: str) -> Path:
    """Return the folder named in `xdg`, unless it is relative, or the platform's default.

    https://specifications.freedesktop.org/basedir-spec
    """
    if (given := Path(os.environ.get(xdg, ""))).is_absolute():
        return given / "cohort"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local or _temporary_folder()) / "cohort" / linux.rpartition("/")[2]
    try:
        home = Path.home()
    except RuntimeError:  # a container's user may not have one
        return Path(_temporary_folder()) / f"cohort-{os.getuid()}" / linux.rpartition("/")[2]
    return home / (macos if sys.platform == "darwin" else linux) / "cohort"


def _temporary_folder() -> str:
    """Return the machine's folder, even if none is writable: that is a warning later."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR") or "/tmp"  # noqa: S108


def default_log_format() -> Literal["json", "console"]:
    """Return "console" if standard error is a terminal, else "json"."""
    return "console" if sys.stderr is not None and sys.stderr.isatty() else "json"


def check_token(token: SecretStr | None) -> SecretStr | None:
    """Strip a bearer token; return None if it is empty. Raises ValueError."""
    text = token.get_secret_value().strip() if token else ""
    if not all("!" <= letter <= "~" for letter in text):
        raise ValueError("must be printable ASCII without spaces, to fit in a header")
    return SecretStr(text) if text else None


def check_watchdog(seconds: float) -> float:
    """Check that seconds are 0, or long enough for the watchdog. Raises ValueError."""
    if seconds and sys.platform != "linux":
        raise ValueError("needs Linux")
    if 0 < seconds < MIN_WATCHDOG_SECONDS:
        raise ValueError(f"must be 0 or >= {MIN_WATCHDOG_SECONDS:g}")
    return seconds


_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def read_hosts(value: object) -> tuple[str, ...]:
    """Read hosts: names or addresses, each with a port or for any port. Raises ValueError."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise ValueError("must be host names separated by commas")  # noqa: TRY004 - pydantic's way
    hosts = tuple(str(text).strip().lower() for text in texts)
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"must be host names separated by commas, without 'http://', got {quoted(host)}"
            )
    return hosts


_LISTENED = re.compile(r"[^\s,/\[\]]+|\[[0-9A-Fa-f:.%\w]+\]")


def read_listened(value: object) -> str:
    """Read the addresses to listen on. Raises ValueError."""
    text = ",".join(one.strip() for one in str(value).split(","))
    for host in text.split(","):
        if not _LISTENED.fullmatch(host):
            raise ValueError(f"must be addresses separated by commas, got {quoted(str(value))}")
    return text


_ROOT_PATH = re.compile(r"(/[A-Za-z0-9~_-][A-Za-z0-9._~-]*)*")


def read_root_path(value: object) -> str:
    """Read the prefix of paths, and remove a slash at its end. Raises ValueError."""
    path = str(value).strip().rstrip("/")
    if not _ROOT_PATH.fullmatch(path):
        raise ValueError(f"must be a path such as /ml, got {quoted(str(value))}")
    return path


_ROUTE = re.compile(r"(?:/[A-Za-z0-9_~.:@-]+)*", re.ASCII)


def read_route(value: object) -> str:
    """Read the path of a route. Raises ValueError."""
    path = str(value).strip()
    if not _ROUTE.fullmatch(path):
        raise ValueError(f"must be a path such as /predict, got {quoted(str(value))}")
    return path


_OWN_ROUTE = re.compile(
    r"/(?:admin|docs|metrics|models|openapi\.json|playground|redoc)(?:/.*)?"
    r"|/v1/models(?:/[^:]*)?|/v2(?:/(?!models/.*/infer).*)?"
)
_HEALTH_ROUTE = re.compile(r"/ping|(?:/v2)?/health/(?:live|ready)")
_PREDICT_ROUTE = re.compile(r"/predict|/invocations|/v1/models/.*:.*|/v2/models/.*/infer")


def read_predict_route(value: object) -> str:
    """Read the path for predictions. Raises ValueError if it is another route of the server."""
    path = read_route(value)
    if _OWN_ROUTE.fullmatch(path) or _HEALTH_ROUTE.fullmatch(path):
        raise ValueError(f"{path} is another route of the server; choose a path such as /predict")
    return path


def read_health_route(value: object) -> str:
    """Read the path for readiness. Raises ValueError if it is another route of the server."""
    path = read_route(value)
    if _HEALTH_ROUTE.fullmatch(path):
        return path
    if _OWN_ROUTE.fullmatch(path) or _PREDICT_ROUTE.fullmatch(path):
        raise ValueError(f"{path} is another route of the server; choose a path such as /health")
    return path


_KEY_PREFIX = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,63})?", re.ASCII)


def read_key_prefix(value: object) -> str:
    """Read the prefix of shared memory keys. Raises ValueError."""
    prefix = str(value).strip()
    if not _KEY_PREFIX.fullmatch(prefix):
        raise ValueError(
            "must be a slash and 1 to 64 letters, digits, '_', '-' and '.', such as /cohort_, got "
            f"{quoted(prefix)}"
        )
    return prefix


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_SPELT_OUT = re.compile(r"(http://.+):80|(https://.+):443")  # browsers leave the port out


def read_origins(value: object) -> tuple[str, ...]:
    """Read the origins of pages, as browsers send them, or `*`. Raises ValueError."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise ValueError("must be origins separated by commas")  # noqa: TRY004 - pydantic's way
    origins = tuple(_SPELT_OUT.sub(r"\1\2", str(text).strip().lower()) for text in texts)
    if "*" in origins and len(origins) > 1:
        raise ValueError("'*' is for all origins: leave the others out, or '*'")
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(
                "must be origins separated by commas, such as https://a.example or "
                f"http://localhost:5173, {_wrong_with(origin)}got {quoted(origin)}"
            )
    return origins


def _wrong_with(origin: str) -> str:
    """Return a hint for a common mistake in an origin, or a general one."""
    if "*" in origin:
        return "each in full or '*' for all, "
    if origin == "null":
        return "not the one that all sandboxed pages share, "
    if not origin.isascii():
        return "in ASCII as browsers send it (xn--…), "
    return "with scheme, " if "://" not in origin else "without a path or '/' at the end, "


def read_models(value: object) -> object:
    """Read the folder of the models, or the address of a remote repository. Raises ValueError."""
    if isinstance(value, str) and is_remote(value):
        return check_remote(value)
    if not isinstance(value, str | Path):
        raise ValueError(f"must be a path, got {quoted(str(value))}")  # noqa: TRY004 - pydantic's way
    return Path(value)


def read_workers(value: object) -> object:
    """Read the number of workers; `auto` is one for each core. Raises ValueError."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        value = cores() if sys.platform == "linux" else 1
    if str(value) != "1" and sys.platform != "linux":
        raise ValueError("more than 1 needs Linux")
    return value


def read_folders(value: object) -> object:
    """Divide folders that are joined as in PATH."""
    return value.split(os.pathsep) if isinstance(value, str) else value


def read_providers(value: object) -> tuple[str, ...]:
    """Read execution providers, in order of preference, as short names. Raises ValueError."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError("must be names separated by commas, such as cuda,cpu")  # noqa: TRY004 - pydantic's way
    from cohort.session import Provider, ProviderInvalid  # noqa: PLC0415 - loads ONNX Runtime

    try:
        return tuple(Provider(str(name)).name for name in names)
    except ProviderInvalid as error:
        raise ValueError(error.problem) from None
