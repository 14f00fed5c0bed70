"""`POST /models/{model}/invoke`, with the bodies of `/invocations`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cohort.http.calls import NO_QUERY, Route
from cohort.http.mlflow.calls import invocation_parser
from cohort.http.predict.calls import predict_route

INVOKE = re.compile(r"/models/(?P<model>[\w.-]+)/invoke", re.ASCII)


def match_invoke(path: str, query: Mapping[str, str] = NO_QUERY) -> Route | None:
    """Return the route of a path without escapes that invokes a model, or None."""
    found = INVOKE.fullmatch(path)
    if found is None:
        return None
    return predict_route(found["model"], query=query, parser=invocation_parser)
