"""Effects of real processes on the series, as cases for promtool: `make recorded`.

A replica is scraped every second here, and every 15 s in production: the samples are replayed at
that pace, with the unchanged rules. A case either fires its alert and ends with the cure, or is
silent throughout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tests.deploy.prometheus import DEPLOY, RULES, Prometheus, read_yaml, write_yaml
from tests.deploy.promql import selectors_in

FILE = DEPLOY / "prometheus" / "tests" / "recorded.yml"
PACE = 15
"""Seconds between two scrapes in the cases."""
HELD = 45
"""Scrapes for which what fires is held: more than the ten minutes that an alert waits at most."""
AFTER = 65
"""Scrapes held at the end: more than the quarter of an hour that alerts look back."""
AFTER_BURNING = 130
"""More than the half hour for which a budget burns on without requests."""
LOOKS_EVERY = 60
"""Seconds between two evaluations of the rules: there are many, and all cases want them."""

ASKED = bool(os.environ.get("INCIDENTS_RECORD"))
"""True if events must be recorded."""

HEAD = """# yamllint disable
# promtool test rules recorded.yml: what real servers did to the series, written by `make recorded`.
"""

_RULES: list[dict[str, Any]] = [
    rule for path in RULES for group in read_yaml(path)["groups"] for rule in group["rules"]
]
_FORMULAS: dict[str, str] = {rule["record"]: rule["expr"] for rule in _RULES if "record" in rule}

Case = dict[str, Any]


@dataclass
class Recorder:
    """Writes down what happens from now on to the series that an alert looks at.

    watched: The Prometheus that has them.
    alert: Its name.
    seconds: Between two scrapes.
    """

    watched: Prometheus
    alert: str
    seconds: float
    began: float = field(init=False)
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.end = self._now()

    def fires(self, at: float, labels: Mapping[str, str]) -> Case:
        """Return a case that fired `at` a time of day with `labels`, and has ended with a cure."""
        self.end = self._now()
        place = self._place(at)
        # A budget burns through continued errors, so no state can be held.
        burns = self.alert.endswith("BudgetBurn")
        held, after = (0, AFTER_BURNING) if burns else (HELD, AFTER)
        series = self._series(place, held, after)
        looked = place + (held or LOOKS_EVERY // PACE)
        named = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        firing = _firing(self.alert, labels["severity"])
        samples = [{"labels": f'ALERTS{{alertstate="firing",{named}}}', "value": 1}]
        return self._case(
            f"fires: {_test()}",
            series,
            [(firing, looked, samples), (firing, self._place(self.end) + held + after, [])],
        )

    def silent(self, what: str) -> Case:
        """It did not fire from the beginning until now, while `what` happened."""
        self.end = self._now()
        ever = f"count_over_time({_firing(self.alert)}[1d])"
        return self._case(
            f"is silent: {what}",
            self._series(0, 0, AFTER),
            [(ever, self._place(self.end) + AFTER, [])],
        )

    def _case(
        self, what: str, series: Mapping[str, str], looks: Sequence[tuple[str, int, object]]
    ) -> Case:
        case = {
            "name": f"{self.alert} {what}",
            "interval": f"{PACE}s",
            "input_series": [{"series": one, "values": text} for one, text in series.items()],
            "promql_expr_test": [
                {"expr": expression, "eval_time": f"{place * PACE}s", "exp_samples": samples}
                for expression, place, samples in looks
            ],
        }
        return _lettered(case)

    def _series(self, place: int, held: int, after: int) -> dict[str, str]:
        """Return all series that the alert reads.

        The value at `place` is repeated for `held` scrapes, and the last value for `after` scrapes.
        """
        found = {}
        for selector in sorted(_selectors(self.alert)):
            query = f"{selector}[{self.end - self.began + 1:.0f}s]"
            data = self.watched.get("query", query=query, time=f"{self.end:.3f}")
            for one in data["result"]:
                name = one["metric"].pop("__name__")
                labels = ",".join(f'{key}="{text}"' for key, text in sorted(one["metric"].items()))
                values = self._values(one["values"])
                values[place:place] = [values[place]] * held
                found[f"{name}{{{labels}}}"] = _notation([*values, *[values[-1]] * after])
        return found

    def _values(self, samples: Sequence[tuple[float, str]]) -> list[str | None]:
        """Return one value for each scrape since the beginning, and None for a missing one."""
        values: list[str | None] = [None] * (self._place(self.end) + 1)
        for at, value in samples:
            values[min(max(self._place(at), 0), len(values) - 1)] = value
        for place, one in enumerate(values[1:-2], 1):  # scrapes are not always so far apart
            if one is None and any(values[place + 1 : place + 3]):
                values[place] = values[place - 1]
        values[0], values[-1] = values[0] or values[1], values[-1] or values[-2]
        return values

    def _place(self, at: float) -> int:
        return round((at - self.began) / self.seconds)

    def _now(self) -> float:
        (sample,) = self.watched.query("time()")
        return sample.value


def write(cases: Sequence[Case]) -> None:
    """Write all cases, in place of those that there were."""
    groups = [group["name"] for path in RULES for group in read_yaml(path)["groups"]]
    write_yaml(
        FILE,
        {
            "evaluation_interval": f"{LOOKS_EVERY}s",
            "group_eval_order": sorted(groups, key=lambda name: name.endswith("-alerts")),
            "rule_files": [f"../rules/{path.name}" for path in RULES],
            "tests": sorted(cases, key=lambda case: str(case["name"])),
        },
    )
    FILE.write_text(HEAD + FILE.read_text())


def _selectors(alert: str) -> set[str]:
    """Return the metrics, with labels, that an alert reads directly or through recording rules."""
    found: set[str] = set()
    waiting = [rule["expr"] for rule in _RULES if rule.get("alert") == alert]
    while waiting:
        for selector in selectors_in(waiting.pop()):
            name = selector.partition("{")[0]
            if name in _FORMULAS:
                waiting.append(_FORMULAS[name])
            else:
                found.add(selector)
    return found


def _firing(alert: str, severity: str = "") -> str:
    of = f',severity="{severity}"' if severity else ""
    return f'ALERTS{{alertname="{alert}",alertstate="firing"{of}}}'


def _test() -> str:
    """The name of the test that runs, in words."""
    name = os.environ["PYTEST_CURRENT_TEST"].partition("::test_")[2].partition(" ")[0]
    return name.replace("_", " ").replace("[", " (").replace("]", ")")


def _lettered(case: Case) -> Case:
    """Return the case with a letter instead of each address, since addresses vary."""
    addresses = sorted(set(re.findall(r"127\.0\.0\.1:\d+", repr(case))))
    letters = dict(zip(addresses, "abcdefgh", strict=False))

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: named(one) for key, one in value.items()}
        if isinstance(value, list):
            return [named(one) for one in value]
        if isinstance(value, str):
            return re.sub(r"127\.0\.0\.1:\d+", lambda found: letters[found[0]], value)
        return value

    renamed: Case = named(case)
    return renamed


def _notation(values: Sequence[str | None]) -> str:
    """Return values in promtool's notation: a value and its number of repetitions."""
    words: list[str] = []
    for one, same in groupby(values):
        times = len(list(same))
        if one is None:
            words += ["stale", f"_x{times - 1}"] if words and times > 1 else [f"_x{times}"]
        else:
            words.append(f"{one}x{times - 1}" if times > 1 else one)
    return " ".join(words)
