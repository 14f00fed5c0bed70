"""Finds the caller of a key, of a token or of a certificate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from cohort.auth.caller import ADMIN, Caller
from cohort.auth.keys import ANY_SUBJECT, ApiKey, digest_of
from cohort.auth.tokens import Issuer, VerifyingKeys
from cohort.errors import Forbidden, NotReady


class Identity(NamedTuple):
    """A caller that is known by a key, until it is taken back, or by a token.

    caller: Who it is.
    until: When the token expires, in seconds since the epoch; None for a key.
    """

    caller: Caller
    until: float | None = None


class KeyRing:
    """All callers: by the SHA-256 of their keys, their tokens, and the names in their certificates.

    A key that is sent is hashed and its hash looked up: the time that takes says nothing of how
    much of a key was right.

    initialized: Whether the keys have been read; until then only `admin_token` is known.
    missing, wrong: How many requests brought no key, and one that is nobody's.

    admin_token: The token of the caller named "admin"; None: there is none.
    issuer: Reads tokens; None: there are none.
    """

    def __init__(self, admin_token: str | None = None, *, issuer: Issuer | None = None) -> None:
        self._issuer = issuer
        self.initialized = False
        self.missing = 0
        self.wrong = 0
        self._changed: list[Callable[[], None]] = []
        self._admin: dict[bytes, Caller] = {}
        if admin_token is not None:
            self._admin[digest_of(admin_token)] = Caller(ADMIN, admin=True)
        self._by_name: dict[str, Caller] = {}
        self._by_digest: dict[bytes, Caller] = dict(self._admin)
        self._by_certificate: dict[str, Caller] = {}
        self._by_subject: dict[str, Caller] = {}

    @property
    def has_operator(self) -> bool:
        """Whether some key may do what only an operator may."""
        return any(caller.admin for caller in self.callers)

    @property
    def kinds(self) -> Collection[str]:
        """By what callers are known: "sha256", "subject", "certificate"."""
        known = {
            "sha256": self._by_digest.keys() - self._admin.keys(),
            "subject": self._by_subject,
            "certificate": self._by_certificate,
        }
        return [kind for kind, entries in known.items() if entries]

    @property
    def callers(self) -> Iterable[Caller]:
        """All callers."""
        return [*self._admin.values(), *self._by_name.values()]

    def find_by_names(self, names: Collection[str]) -> Caller | None:
        """The caller whose certificate has these names; None if they are nobody's or several's."""
        callers = {self._by_certificate[name] for name in names if name in self._by_certificate}
        return callers.pop() if len(callers) == 1 else None

    def find(self, key: str) -> Identity | None:
        """The caller whose key or token this is; None where it is nobody's key.

        Raises Unauthorized, NotReady or Overloaded for a token that is refused, and Forbidden for
        one whose subject has no entry.
        """
        digest = digest_of(key)
        caller = self._by_digest.get(digest)
        if caller is not None:
            return Identity(caller)
        if self._issuer is None or key.count(".") != 2:
            return None
        claims = self._issuer.read(key, digest)
        caller = self._by_subject.get(claims.subject) or self._by_subject.get(ANY_SUBJECT)
        if caller is not None:
            return Identity(caller, claims.until)
        if not self.initialized:
            raise NotReady("the API keys cannot be read yet")
        raise Forbidden("no entry of the server's keys names the subject of this token ('sub')")

    def on_change(self, do: Callable[[], None]) -> None:
        """Call `do` after each change, so that no decision by the former keys is remembered."""
        self._changed.append(do)

    def trust(self, keys: VerifyingKeys) -> None:
        """Verify tokens by these keys of the issuer from now on, and by no others."""
        if self._issuer is not None:
            self._issuer.follow(keys)
        self._tell()

    def follow(self, keys: Sequence[ApiKey]) -> None:
        """Know these keys from now on, and no others. Callers go on with their counts and quotas,
        by name.
        """
        before, self._by_name = self._by_name, {}
        by_digest = dict(self._admin)
        by_certificate: dict[str, Caller] = {}
        by_subject: dict[str, Caller] = {}
        for key in keys:
            caller = before.get(key.name) or Caller(key.name)
            caller.follow(key)
            self._by_name[key.name] = caller
            if key.sha256 is not None:
                by_digest[bytes.fromhex(key.sha256)] = caller
            if key.certificate is not None:
                by_certificate[key.certificate] = caller
            if key.subject is not None:
                by_subject[key.subject] = caller
        self._by_digest, self._by_certificate = by_digest, by_certificate
        self._by_subject = by_subject
        self.initialized = True
        self._tell()

    def _tell(self) -> None:
        for do in self._changed:
            do()
