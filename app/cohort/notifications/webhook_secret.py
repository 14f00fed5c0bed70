"""The secret that notifications are signed with: from an operator's file, and never an empty one.

Read when the server starts, and again when the file has changed; signing never waits for a disk.
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
SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with that is written in base64
MOST_SECRET_BYTES = 4096


def decode_secret(text: str) -> bytes:
    """The key that a secret stands for: decoded after "whsec_", else its own bytes.

    Spaces and line ends around it do not count. Raises ValueError, with a sentence, for none.
    """
    text = text.strip()
    key = text.encode()
    if text.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError:
            raise ValueError(f"is not in base64 after {SECRET_PREFIX}") from None
    if not key:
        raise ValueError("has no secret in it: nothing can be signed")
    return key


def load_secret(path: Path) -> bytes:
    """Read the key from a file. Raises ConfigProblems with what is wrong with it."""
    try:
        return decode_secret(read_small(path, MOST_SECRET_BYTES))
    except FileNotFoundError:
        said = "is missing"
    except OSError as error:
        said = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        said = "is not UTF-8 text"
    except ValueError as error:
        said = str(error)
    raise ConfigProblems([Problem(path.name, SECRET_SETTING, said)])


class SecretFile:
    """Follows the file. One that is broken or missing changes nothing.

    key: What to sign with now.

    path: The file. Raises ConfigProblems where it is wrong from the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = FollowedFiles(
            [path], partial(load_secret, path), log=log, invalid="webhook secret invalid", seen=True
        )
        self.key = load_secret(path)

    @property
    def problems(self) -> list[str]:
        """What is wrong with the file, in sentences."""
        return [str(problem) for problem in self._file.problems]

    async def check_file(self) -> None:
        """Follow the file, if it has changed and is no longer being written."""
        if (key := await self._file.check()) is not None:
            self.key = key
            log.info("webhook secret read", file=self._path.name)
