"""Finds the caller of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from app.callers.caller import ADMIN, Caller
from app.callers.keys import ApiKey, digest_of


class KeyRing:
    """All callers by the SHA-256 of their keys.

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

    @property
    def has_operator(self) -> bool:
        """Whether some key may do what only an operator may."""
        return any(caller.admin for caller in self._by_digest.values())

    @property
    def callers(self) -> Iterable[Caller]:
        """All callers."""
        return self._by_digest.values()

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
        for key in keys:
            caller = before.get(key.name) or Caller(key.name)
            caller.follow(key)
            self._by_name[key.name] = caller
            by_digest[bytes.fromhex(key.sha256)] = caller
        self._by_digest = by_digest
        self.initialized = True
        for do in self._changed:
            do()
