"""What an incident did to the series, as a case for promtool: `make recorded`.

A replica is scraped twice a second here, and every 15 s where somebody is woken: the samples are
replayed at that pace. The state at the moment the alert fired, and that after the cure, are held
for as long as the longest alert waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tests.deploy.prometheus import DEPLOY, RULES, read_yaml, write_yaml
from tests.deploy.promql import OF_PROMETHEUS, metrics_in

if TYPE_CHECKING:
    from tests.incidents.scenes import Alert

FILE = DEPLOY / "prometheus" / "tests" / "recorded.yml"
HELD = 45
"""Scrapes for which a state is held: more than the ten minutes that an alert waits at most."""

Recorded = dict[str, Any]

_RULES: list[dict[str, Any]] = [
    rule for path in RULES for group in read_yaml(path)["groups"] for rule in group["rules"]
]


def sources(expression: str) -> set[str]:
    """The metrics that an expression comes down to, through recording rules."""
    recorded = {rule["record"]: rule["expr"] for rule in _RULES if "record" in rule}
    found: set[str] = set()
    for name in metrics_in(expression):
        found |= sources(recorded[name]) if ":" in name else {name}
    return found


def record(alert: Alert, seconds: float) -> Recorded:
    """The case: the alert fires by the series as they were, and does not by those after."""
    end = _now(alert)
    expressions = [one["expr"] for one in _RULES if one.get("alert") == alert.name]
    names = {name for one in expressions for name in sources(one)} - (OF_PROMETHEUS - {"up"})
    looks = f"[{end - alert.began + 1:.0f}s]"
    series = {}
    for name in sorted(names):
        found = alert.watched.get("query", query=f"{name}{looks}", time=f"{end:.3f}")
        for one in found["result"]:
            labels = {key: value for key, value in one["metric"].items() if key != "__name__"}
            series[_series(name, labels)] = _values(one["values"], alert, end, seconds)
    first = round((alert.fired - alert.began) / seconds) + HELD
    last = first + round((end - alert.fired) / seconds) + HELD
    labels = {key: value for key, value in alert.labels.items() if key != "alertname"}
    return {
        "name": f"{alert.name}, recorded",
        "interval": "15s",
        "input_series": [{"series": one, "values": text} for one, text in series.items()],
        "alert_rule_test": [
            {
                "alertname": alert.name,
                "eval_time": f"{first * 15}s",
                "exp_alerts": [
                    {
                        "exp_labels": _named(labels),
                        "exp_annotations": {
                            key: _without_ports(text) for key, text in alert.annotations.items()
                        },
                    }
                ],
            },
            {"alertname": alert.name, "eval_time": f"{last * 15}s", "exp_alerts": []},
        ],
    }


def write(cases: Sequence[Recorded]) -> None:
    """Write all cases, in place of those that there were."""
    ordered = sorted(cases, key=lambda case: str(case["name"]))
    write_yaml(
        FILE,
        {
            "evaluation_interval": "15s",
            "group_eval_order": ["cohort-requests", "cohort-replicas"],
            "rule_files": [f"../rules/{path.name}" for path in RULES],
            "tests": ordered,
        },
    )
    text = FILE.read_text()
    FILE.write_text(
        "# yamllint disable\n"
        "# promtool test rules recorded.yml: the series of real incidents, by `make recorded`.\n"
        + text
    )


_letters: dict[str, str] = {}


def _named(labels: dict[str, str]) -> dict[str, str]:
    """With a letter in place of an address, which is another each time."""
    if "instance" in labels:
        letter = _letters.setdefault(labels["instance"], chr(ord("a") + len(_letters)))
        return {**labels, "instance": letter}
    return labels


def _without_ports(text: str) -> str:
    for address, letter in _letters.items():
        text = text.replace(address, letter)
    return text


def _series(name: str, labels: dict[str, str]) -> str:
    written = ",".join(f'{key}="{value}"' for key, value in sorted(_named(labels).items()))
    return f"{name}{{{written}}}"


def _now(alert: Alert) -> float:
    (sample,) = alert.watched.query("time()")
    return sample.value


def _values(samples: list[tuple[float, str]], alert: Alert, end: float, seconds: float) -> str:
    """The samples in promtool's notation, one for each scrape."""
    count = round((end - alert.began) / seconds) + 1
    values: list[str | None] = [None] * count
    for at, value in samples:
        values[min(max(round((at - alert.began) / seconds), 0), count - 1)] = value
    for place, one in enumerate(values[1:-2], 1):  # scrapes are not always so far apart
        if one is None and any(values[place + 1 : place + 3]):
            values[place] = values[place - 1]
    values[0], values[-1] = values[0] or values[1], values[-1] or values[-2]
    fired = round((alert.fired - alert.began) / seconds)
    held = [*values[: fired + 1], *[values[fired]] * HELD, *values[fired + 1 :]]
    held += [held[-1]] * HELD
    words: list[str] = []
    for one, same in groupby(held):
        times = len(list(same))
        if one is None:
            words += ["stale", f"_x{times - 1}"] if words and times > 1 else [f"_x{times}"]
        else:
            words.append(f"{one}x{times - 1}" if times > 1 else one)
    return " ".join(words)
