"""Finds the caller of a key, of a token or of a certificate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from cohort.auth.caller import ADMIN, Caller
from cohort.auth.keys import ANY_SUBJECT, ApiKey, digest_of
from cohort.auth.tokens import Issuer, VerifyingKeys
from cohort.errors import Forbidden, NotReady


class Identity(NamedTuple):
    """A caller that is identified by a key or by a token.

    caller: The caller.
    until: When the token expires, in seconds since the epoch; None for a key.
    """

    caller: Caller
    until: float | None = None


class KeyRing:
    """All callers: by the SHA-256 of their keys, their tokens, and the names in their certificates.

    A received key is hashed and its hash looked up. So the time does not depend on how much of a
    key was right.

    initialized: True once the keys have been read; until then only `admin_token` is known.
    missing, wrong: The number of requests without a key, and with an unknown key.

    admin_token: The token of the caller named "admin"; None: there is no such caller.
    issuer: Reads tokens; None: tokens are not accepted.
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
        """True if a key may perform operators' actions."""
        return any(caller.admin for caller in self.callers)

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of credentials in use: "sha256", "subject", "certificate"."""
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
        """Return the caller whose certificate has these names; None if it is not exactly one."""
        callers = {self._by_certificate[name] for name in names if name in self._by_certificate}
        return callers.pop() if len(callers) == 1 else None

    def find(self, key: str) -> Identity | None:
        """Return the caller of a key or token; None if the key is unknown.

        Raises Unauthorized, NotReady or Overloaded for a refused token, and Forbidden for a token
        whose subject has no entry.
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
        raise Forbidden("the token's subject ('sub') has no entry in the server's API keys")

    def on_change(self, do: Callable[[], None]) -> None:
        """Call `do` after each change, so that decisions by former keys are forgotten."""
        self._changed.append(do)

    def trust(self, keys: VerifyingKeys) -> None:
        """Verify tokens only with these keys of the issuer from now on."""
        if self._issuer is not None:
            self._issuer.follow(keys)
        self._notify()

    def follow(self, keys: Sequence[ApiKey]) -> None:
        """Accept only these keys from now on. Callers keep their counts and quotas, by name."""
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
        self._notify()

    def _notify(self) -> None:
        for do in self._changed:
            do()
