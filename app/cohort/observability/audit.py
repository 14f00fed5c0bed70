"""The audit log: one line for each request of an operator's, whatever its API and its result."""

from __future__ import annotations

from time import monotonic
from typing import Literal

import structlog

from cohort.errors import printable
from cohort.observability.refusals import LineLimit

log = structlog.get_logger("cohort.admin")

AdminResult = Literal["done", "refused", "failed", "left"]

_refused = LineLimit()


def log_admin_request(
    action: str,
    *,
    caller: str,
    address: str,
    request_id: str,
    result: AdminResult,
    status: int | str,
) -> None:
    """Log who did what, or tried to.

    action: The method and the path, or the gRPC method and the model.
    caller: The name of the key, token or certificate; "": nobody's.
    address: Where the request came from.
    request_id: Its id, sent or made here.
    result: "left" where the caller did not wait for the answer; what was asked for may be done.
    status: The status of HTTP, or the name of the code of gRPC.

    Of those that are refused, 20 lines a second are written, as of all refusals.
    """
    more = {}
    if result == "refused":
        left_out = _refused.take(result, monotonic())
        if left_out is None:
            return
        if left_out:
            more = {"left_out": left_out}
    log.info(
        "admin request",
        caller=caller or None,
        address=printable(address),
        request_id=request_id,
        action=action,
        result=result,
        status=status,
        **more,
    )
