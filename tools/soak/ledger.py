"""The requests and answers of the clients, to compare with the server's counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import ArrayLike

from tests.chaos.callers import factor_of
from tests.e2e.scrape import Scrape

STEADY, SLOW, CHANGING, LEFT = "steady", "slow", "changing", "left"
"""Models: one always serves, one is slow, one is unloaded at times, and callers of one leave."""

EXPECTED = {
    STEADY: {"OK", "InvalidInput"},
    SLOW: {"OK", "DeadlineExceeded", "Overloaded"},  # its queue is too long for a deadline
    CHANGING: {"OK", "NotReady", "ModelNotFound"},
    LEFT: {"OK"},
}
"""The outcomes that a request to a model may have."""


class Ledger:
    """The requests of all clients.

    sent, answered: Number of requests, without those whose callers left.
    outcomes: Number of answers by model and code.
    wrong: Answers that are wrong or were not expected.
    """

    def __init__(self) -> None:
        self.sent = self.answered = 0
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []

    def heard(self, model: str, code: str, *, told: object = "") -> None:
        """Note an answer."""
        self.answered += 1
        self.outcomes[model, code] += 1
        if code not in EXPECTED[model]:
            self.wrong.append(f"{model}: {code} {told}")

    def check(self, model: str, x: ArrayLike, y: ArrayLike, version: str) -> None:
        """Check the numbers of an answer."""
        factor = 1 if model == SLOW else factor_of(int(version))
        if not np.array_equal(np.ravel(np.multiply(x, factor)), np.ravel(y)):
            self.wrong.append(f"{model} {version}: {x!r} gave {y!r}")

    def compare(self, scrape: Scrape) -> None:
        """Assert that the server counted the answers that clients got, except where callers left.

        The server does not count a model by name while it is not loaded.
        """
        for model in (STEADY, SLOW, CHANGING):
            counted = Counter(
                {
                    code: int(scrape.value("model_inference_total", model=model, code=code))
                    for code in scrape.by("model_inference_total", "code", model=model)
                }
            )
            heard = Counter(
                {code: count for (of, code), count in self.outcomes.items() if of == model}
            )
            heard.pop("ModelNotFound", None)
            assert counted == heard, f"{model}: counted {counted}, heard {heard}"
