"""The audit log: one line for each operator request, for every API and result."""

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
    """Log an operator request: its caller, action and result.

    action: The method and the path, or the gRPC method and the model.
    caller: The name of the key, token or certificate; "" if it is unknown.
    address: The client's address.
    request_id: The request's id, from the client or generated.
    result: "left" if the client disconnected before the response; the action may have been done.
    status: The HTTP status, or the name of the gRPC code.

    Refused requests are limited to 20 lines a second.
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
