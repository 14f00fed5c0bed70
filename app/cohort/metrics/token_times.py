"""The times of the tokens of streamed answers.

The names and bounds are OpenTelemetry's where it has them:
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/
"""

from __future__ import annotations

from cohort.metrics.histogram import Histogram

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 30.0),
)
TOKEN_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 10.0),
)


class TokenTimes:
    """The times of one variant of a version, in seconds.

    first: From a request's arrival to its first token.
    each: The mean time of a token after the first, by choice of a complete answer.
    between: Between one new piece of a choice and the next, which is what a reader waits.
    """

    __slots__ = ("between", "each", "first")

    def __init__(self) -> None:
        self.first = Histogram(FIRST_TOKEN_BUCKETS)
        self.each = Histogram(TOKEN_BUCKETS)
        self.between = Histogram(TOKEN_BUCKETS)
