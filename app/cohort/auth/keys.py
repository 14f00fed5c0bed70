"""The operator's file of callers' keys: COHORT_API_KEYS."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, with_config

from cohort.errors import MODEL_NAME, quoted
from cohort.repository import (
    ConfigProblems,
    Problem,
    Range,
    invalid,
    parse_yaml,
    read_text,
    validate_tree,
)

KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
KEY_NAME_IN_WORDS = "at most 64 letters, digits, '.', '_' and '-', starting with a letter or digit"
SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
ANY_SUBJECT = "*"
"""Matches every subject that has no separate entry."""

MAX_CERTIFICATE_NAME = 2048
"""Maximum length of a name: that of a SPIFFE ID, which is a URI."""


def _check_name(name: str) -> str:
    if not KEY_NAME.fullmatch(name):
        raise invalid(f"{quoted(name)} is not a valid name: it must have {KEY_NAME_IN_WORDS}")
    return name


def _check_sha256(digest: str) -> str:
    # The value may be the key itself, so the message must not repeat it.
    if not SHA256.fullmatch(digest):
        raise invalid("must be the key's SHA-256 in 64 hexadecimal digits; see 'cohort key new'")
    return digest.lower()


def _check_certificate(name: str) -> str:
    if not (name.isprintable() and name.strip() == name and 0 < len(name) <= MAX_CERTIFICATE_NAME):
        raise invalid(f"{quoted(name)} is not a valid name in a certificate")
    return name


def _check_subject(subject: str) -> str:
    if not (subject.isprintable() and subject.strip() == subject and 0 < len(subject) <= 255):
        raise invalid(f"{quoted(subject)} is not a valid 'sub' of a token; use \"*\" for any token")
    return subject


def _check_models(models: tuple[str, ...]) -> tuple[str, ...]:
    for model in models:
        if not MODEL_NAME.fullmatch(model):
            raise invalid(f"{quoted(model)} is not a model's name; leave 'models' out for all")
    return models


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class ApiKey:
    """One entry of the file: a caller with at least one of `sha256`, `certificate`, `subject`.

    name: Caller's name in logs and metrics.
    sha256: SHA-256 of its key, in 64 hexadecimal digits; default None.
    certificate: Name in its client certificate; default None.
    subject: The `sub` of its tokens, or "*", for tokens that match no other entry; default None.
    models: Models visible to it; default None: all of them.
    rate: Requests per second; default None: no limit.
    concurrency: Maximum of requests in progress; default None: no limit.
    tokens_per_minute: Tokens of language models, of prompts and answers; default None: no limit.
    priority: 1: its requests run first in a queue; -1: last; default 0.
    admin: Allow operators' actions; default False.
    """

    name: Annotated[str, AfterValidator(_check_name)]
    sha256: Annotated[str, AfterValidator(_check_sha256)] | None = None
    certificate: Annotated[str, AfterValidator(_check_certificate)] | None = None
    subject: Annotated[str, AfterValidator(_check_subject)] | None = None
    models: Annotated[tuple[str, ...], AfterValidator(_check_models)] | None = None
    rate: float | None = None
    concurrency: int | None = None
    tokens_per_minute: int | None = None
    priority: int = 0
    admin: bool = False


KEY_RANGES: Mapping[str, Range] = {
    "*.rate": Range(0.001, 1e6, "requests per second"),
    "*.concurrency": Range(1, 1e6),
    "*.tokens_per_minute": Range(1, 1e9, "tokens"),
    "*.priority": Range(-1, 1, "1 goes first, -1 last"),
}


def load_keys(path: Path, *, reserved: str = "") -> Sequence[ApiKey]:
    """Read the file at `path`, which must exist. Raises ConfigProblems with all problems.

    `reserved` is a name that no entry may have.
    """
    text = read_text(path, path.name)
    if text is None:
        raise ConfigProblems([Problem(path.name, "", "is missing")])
    return parse_keys(text, path.name, reserved=reserved)


def parse_keys(text: str, file: str, *, reserved: str = "") -> Sequence[ApiKey]:
    """Read the text of such a file, called `file` in messages. Raises ConfigProblems."""
    tree = parse_yaml(text, file)
    if tree is None:  # probably truncated: `[]` means no callers
        raise ConfigProblems([Problem(file, "", "is empty; write [] to allow no callers")])
    keys: Sequence[ApiKey] = validate_tree(tree, list[ApiKey], file, KEY_RANGES)
    problems = [
        Problem(file, f"[{place}].{key}".removesuffix("."), sentence)
        for place, key, sentence in _contradictions(keys, reserved)
    ]
    if problems:
        raise ConfigProblems(problems)
    return keys


def _contradictions(keys: Sequence[ApiKey], reserved: str) -> Iterator[tuple[int, str, str]]:
    names: dict[str, int] = {}
    ways: dict[tuple[str, str], int] = {}
    for place, key in enumerate(keys):
        if key.name == reserved:
            yield place, "name", f"{quoted(reserved)} is reserved for COHORT_ADMIN_TOKEN"
        if (before := names.setdefault(key.name, place)) != place:
            yield place, "name", f"{quoted(key.name)} is already the name of [{before}]"
        known_by = {"sha256": key.sha256, "certificate": key.certificate, "subject": key.subject}
        for way, what in known_by.items():
            if what is not None and (before := ways.setdefault((way, what), place)) != place:
                yield place, way, f"is the same as [{before}]'s"
        if not any(known_by.values()):
            yield place, "", f"must have one of {', '.join(known_by)}"
        if key.admin and key.models is not None:
            yield place, "models", "an admin sees every model; leave 'models' out"
        if key.admin and key.subject == ANY_SUBJECT:
            yield place, "admin", "every token holder would be an admin; name the subjects"


def new_key() -> str:
    """Return a new random key: 256 bits, with a prefix that identifies leaked keys."""
    return f"cohort_{secrets.token_urlsafe(32)}"


def digest_of(key: str) -> bytes:
    """Return the SHA-256 of a key from a header, whose bytes are read as Latin-1."""
    return sha256(key.encode("latin-1", "backslashreplace")).digest()
