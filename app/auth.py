"""Who may do what, decided once for every adapter from what its protocol carries.

Today there is one role beside the caller's: the operator, known by the admin token. Whatever else
tells callers apart later (keys of their own, several operators with names) is another method here
and another credential to read, not another check in each adapter.
"""

from __future__ import annotations

from hmac import compare_digest

from app.errors import Forbidden, Unauthorized


class Authority:
    """Decides whether a request may do what it asks for.

    `admin_token`: what an operator's requests carry. None: there is no operator, and whatever needs
    one is switched off.
    """

    __slots__ = ("_admin_token",)

    def __init__(self, admin_token: str | None = None) -> None:
        self._admin_token = None if admin_token is None else admin_token.encode()

    def check_operator(self, authorization: str | None) -> None:
        """Return if a request is the operator's.

        `authorization` is the text of the header of that name over HTTP, and of the metadata of
        that name over gRPC: `Bearer <token>`; None where the request has none.

        Raises Unauthorized without a bearer token, Forbidden with a wrong one, and Forbidden for
        every request where the server has no admin token. Takes the same time for every wrong token
        of the right length.
        """
        if self._admin_token is None:
            raise Forbidden("admin requests are disabled: COHORT_ADMIN_TOKEN is not set")
        token = bearer_token(authorization)
        if token is None:
            raise Unauthorized(
                "this request needs the header 'Authorization: Bearer <admin token>'"
            )
        if not compare_digest(token.encode(), self._admin_token):
            raise Forbidden("the admin token is wrong")


def bearer_token(authorization: str | None) -> str | None:
    """The token of `Bearer <token>`, whatever the case of its first word; None where there is none.

    https://www.rfc-editor.org/rfc/rfc6750#section-2.1
    """
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
