"""Finds the caller of a key or of a certificate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from app.callers.caller import ADMIN, Caller
from app.callers.keys import ApiKey, digest_of


class KeyRing:
    """All callers by the SHA-256 of their keys, and by the names in their certificates.

    A key that is sent is hashed and its hash looked up: the time that takes says nothing of how
    much of a key was right.

    initialized: Whether the keys have been read; until then only `admin_token` is known.
    missing, wrong: How many requests brought no key, and one that is nobody's.

    admin_token: The token of the caller named "admin"; None: there is none.
    """

    def __init__(self, admin_token: str | None = None) -> None:
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

    @property
    def has_operator(self) -> bool:
        """Whether some key may do what only an operator may."""
        return any(caller.admin for caller in self.callers)

    @property
    def callers(self) -> Iterable[Caller]:
        """All callers."""
        return [*self._admin.values(), *self._by_name.values()]

    def find_by_names(self, names: Collection[str]) -> Caller | None:
        """The caller whose certificate has these names; None if they are nobody's or several's."""
        callers = {self._by_certificate[name] for name in names if name in self._by_certificate}
        return callers.pop() if len(callers) == 1 else None

    def find(self, key: str) -> Caller | None:
        """The caller whose key this is; None where it is nobody's."""
        return self._by_digest.get(digest_of(key))

    def on_change(self, do: Callable[[], None]) -> None:
        """Call `do` after each change, so that no decision by the former keys is remembered."""
        self._changed.append(do)

    def follow(self, keys: Sequence[ApiKey]) -> None:
        """Know these keys from now on, and no others. Callers go on with their counts and quotas,
        by name.
        """
        before, self._by_name = self._by_name, {}
        by_digest = dict(self._admin)
        by_certificate: dict[str, Caller] = {}
        for key in keys:
            caller = before.get(key.name) or Caller(key.name)
            caller.follow(key)
            self._by_name[key.name] = caller
            if key.sha256 is not None:
                by_digest[bytes.fromhex(key.sha256)] = caller
            if key.certificate is not None:
                by_certificate[key.certificate] = caller
        self._by_digest, self._by_certificate = by_digest, by_certificate
        self.initialized = True
        for do in self._changed:
            do()
