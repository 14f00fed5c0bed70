"""The secret that signs notifications, from an operator's file. An empty secret is an error.

The file is read when the server starts and again when it changes. Signing never reads a disk.
"""

from __future__ import annotations

import base64
from functools import partial
from pathlib import Path

import structlog

from cohort.repository import ConfigProblems, FollowedFiles, Problem
from cohort.system.kept_files import read_small

log = structlog.get_logger("cohort")

SECRET_SETTING = "COHORT_WEBHOOK_SECRET_FILE"  # noqa: S105 - the name of a setting
SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of a secret in base64
MAX_SECRET_BYTES = 4096


def decode_secret(text: str) -> bytes:
    """Return a secret's key: the base64 after "whsec_" decoded, or the secret's own bytes.

    Spaces and line ends around it are removed. Raises ValueError with a sentence if the secret is
    empty or not valid base64.
    """
    text = text.strip()
    key = text.encode()
    if text.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError:
            raise ValueError(f"is not in base64 after {SECRET_PREFIX}") from None
    if not key:
        raise ValueError("contains no secret, so nothing can be signed")
    return key


def load_secret(path: Path) -> bytes:
    """Read the key from a file. Raises ConfigProblems if the file is missing or invalid."""
    try:
        return decode_secret(read_small(path, MAX_SECRET_BYTES))
    except FileNotFoundError:
        sentence = "is missing"
    except OSError as error:
        sentence = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        sentence = "is not UTF-8 text"
    except ValueError as error:
        sentence = str(error)
    raise ConfigProblems([Problem(path.name, SECRET_SETTING, sentence)])


class SecretFile:
    """The current signing key, read again when its file changes.

    If the file becomes invalid or disappears, the last key stays in use.

    key: The current key.

    path: The file. Raises ConfigProblems if it is invalid at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = FollowedFiles(
            [path], partial(load_secret, path), log=log, invalid="webhook secret invalid", seen=True
        )
        self.key = load_secret(path)

    @property
    def problems(self) -> list[str]:
        """Return the file's problems as sentences."""
        return [str(problem) for problem in self._file.problems]

    async def check_file(self) -> None:
        """Read the file again if it has changed and its writer has finished."""
        if (key := await self._file.check()) is not None:
            self.key = key
            log.info("webhook secret read", file=self._path.name)
