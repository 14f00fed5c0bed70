"""Every query of every dashboard, with a real Prometheus that scrapes two real servers.

Counts are compared exactly, although `increase()` and `rate()` extrapolate to the edges of the
window. Here both edges are scrapes, so the values are not extrapolated. Each replica has separate
windows, since each is scraped at different times. Every series exists before the window begins,
since a series that appears within it has no increase at its start.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cohort.metrics import DURATION_BUCKETS
from deploy.grafana import BOARDS
from tests.deploy.fleet import Asked, Fleet, Timed, ask, ask_one_by_one, fleet, leave, roll_back
from tests.deploy.prometheus import DEPLOY, RULES, Sample, read_yaml
from tests.deploy.promql import (
    OF_PROMETHEUS,
    documented_metrics,
    metrics_in,
    metrics_of,
    selectors_in,
)
from tests.waiting import wait_until

FOLDER = DEPLOY / "grafana"
FILES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("dashboards/*.json"))
}
TARGETS: dict[tuple[str, str, str], str] = {
    (uid, panel["title"], target["refId"]): target["expr"]
    for uid, board in FILES.items()
    for panel in board["panels"]
    for target in panel["targets"]
}
MODELS = ("digits", "iris", "slow", "smalltalk")
ELSEWHERE = (  # not in this fleet
    "api_key", "tls_", "haproxy_", "nginx_", "rollout_ramp", "remote_repository_", "trusted_"
)  # fmt: skip
ABSENT = re.compile("balancer|service:fail")
COUNT = 40  # requests one by one, to each replica


@dataclass(frozen=True)
class Span:
    """Time between two scrapes of a replica, as time of day."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """It is a millisecond longer, so that the first scrape is within either edge count."""
        return self.end - self.begin + 0.001


@dataclass(frozen=True)
class Watched:
    """The fleet after its load: what clients know, and when it was, by replica."""

    fleet: Fleet
    asked: Mapping[str, Asked]
    timed: Mapping[str, list[Timed]]
    load: Mapping[str, Span]
    one_by_one: Mapping[str, Span]
    began: float  # before anything was scraped

    def ask(self, key: tuple[str, str, str], span: Span, **chosen: str) -> list[Sample]:
        """Run a panel's query as Grafana would, at the end of `span`."""
        return self.run(TARGETS[key], span, **chosen)

    def run(
        self,
        expression: str,
        span: Span,
        *,
        model: str = "",
        instance: str = ".*",
        quantile: str = "0.95",
    ) -> list[Sample]:
        """The same for any expression."""
        values = {
            "__rate_interval": f"{span.seconds * 1000:.0f}ms",
            "__range": f"{span.seconds * 1000:.0f}ms",
            "instance": instance,
            "model": model,
            "quantile": quantile,
            "baseline": "a" if model == "slow" else "stable",
        }
        text = re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)
        return self.fleet.watched.query(text, at=span.end)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Two replicas after a first load, which makes every series, and a second, which counts."""
    began = time.time()
    with fleet(tmp_path_factory.mktemp("fleet")) as running:
        urls = {one.url.removeprefix("http://"): one.url for one in running.replicas}
        for url in urls.values():
            asyncio.run(ask(url, requests=240))
            for _ in range(5):
                leave(url)
        roll_back(running.replicas[0], "slow", "b")
        begin = scraped(running)
        asked = {name: asyncio.run(ask(url, requests=400)) for name, url in urls.items()}
        middle = scraped(running)
        timed = {name: ask_one_by_one(url, COUNT) for name, url in urls.items()}
        end = scraped(running)
        yield Watched(
            running,
            asked,
            timed,
            {name: Span(begin[name], middle[name]) for name in urls},
            {name: Span(middle[name], end[name]) for name in urls},
            began,
        )


def scraped(running: Fleet) -> dict[str, float]:
    """Return when each replica was scraped, after the rules have read all events until now.

    A scrape has this moment, then the rules have that scrape, and the next one is the edge. A
    window that ends there has the recording rules' values of all earlier events. On a busy machine
    each of the three may come late.
    """
    next_scrapes(running, time.time() + 1)
    times = next_scrapes(running, next_rules(running))
    next_rules(running)
    return times


def next_scrapes(running: Fleet, since: float) -> dict[str, float]:
    """When each replica is next scraped with success: without it no series is there."""

    def enough(samples: list[Sample]) -> list[Sample]:
        return samples if len(samples) == len(running.replicas) else []

    up = 'up{job="cohort"}'
    query = f"timestamp({up}) > {since:.3f} and {up} == 1"
    found = wait_until(lambda: enough(running.watched.wait_for(query)))
    return {sample.labels["instance"]: sample.value for sample in found}


def next_rules(running: Fleet) -> float:
    """When the rules are next evaluated, over all that is scraped already."""
    rule = "timestamp(instance_model:valid_requests:sum)"
    (found, *_) = running.watched.wait_for(f"{rule} > {time.time():.3f}")
    return found.value


def whole(watched: Watched) -> Span:
    """Return the time from before the load until after it, for all replicas."""
    return Span(
        min(span.begin for span in watched.load.values()),
        max(span.end for span in watched.one_by_one.values()),
    )


# -- the files


def test_the_files_are_what_the_code_writes() -> None:
    """After a change run `python -m deploy.grafana`."""
    written = {path.stem: path.read_text() for path in FOLDER.glob("dashboards/*.json")}
    assert written == {board.uid: board.json() for board in BOARDS}


def test_grafana_finds_them_and_their_source() -> None:
    """Names are those in the provisioning files; panels have unique numbers and do not overlap."""
    (source,) = read_yaml(FOLDER / "provisioning/datasources/cohort.yml")["datasources"]
    (provider,) = read_yaml(FOLDER / "provisioning/dashboards/cohort.yml")["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    wanted = {"type": source["type"], "uid": source["uid"]}
    for uid, board in FILES.items():
        assert board["uid"] == uid
        panels = board["panels"]
        assert {panel["id"] for panel in panels} == set(range(1, len(panels) + 1))
        places: set[tuple[int, int]] = set()
        for panel in panels:
            assert panel["datasource"] == wanted
            assert all(target["datasource"] == wanted for target in panel["targets"])
            assert panel["description"]
            assert panel["type"] != "table" or len(panel["targets"]) == 1  # it shows one of them
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & places, "panels lie over each other"
            places |= cells


# -- every query


# The fleet has no balancer, which tests/incidents has.
PRESENT = [key for key, text in TARGETS.items() if not ABSENT.search(text)]


@pytest.mark.parametrize("key", PRESENT, ids=" / ".join)
def test_every_query_has_an_answer(watched: Watched, key: tuple[str, str, str]) -> None:
    """Numbers, for one of the models at least; not one query may be without."""
    found = [sample for model in MODELS for sample in watched.ask(key, whole(watched), model=model)]
    assert any(isfinite(sample.value) for sample in found), found


@pytest.mark.parametrize("board", FILES, ids=str)
def test_every_board_shows_what_happened(watched: Watched, board: str) -> None:
    """Starts, loads, changed weights and rollbacks, each with a text of labels that there are."""
    events = {one["name"]: one for one in FILES[board]["annotations"]["list"]}
    assert set(events) == {"Started", "Loaded", "Weights changed", "Rolled back"}
    span = Span(watched.began, whole(watched).end)
    for event in events.values():
        found = watched.run(event["expr"], span, model="slow")
        assert found, event
        for label in re.findall(r"\{\{(\w+)\}\}", event["textFormat"]):
            assert all(label in one.labels for one in found), event
        if event["useValueForTime"] == "on":
            assert all(abs(one.value / 1000 - watched.began) < 3600 for one in found)


def test_what_links_lead_to_is_there() -> None:
    """Links lead from the service to a model, and from it to its rollout, and keep the model."""
    urls = {
        (uid, link["url"])
        for uid, board in FILES.items()
        for panel in board["panels"]
        for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ())
    }
    leads = {(uid, url.partition("?")[0].removeprefix("/d/")) for uid, url in urls}
    assert leads >= {("cohort-service", "cohort-model"), ("cohort-model", "cohort-rollout")}
    for _, url in urls:
        page = FILES[url.partition("?")[0].removeprefix("/d/")]
        names = {variable["name"] for variable in page["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", url)) <= names


def test_a_renamed_metric_leaves_its_queries_without_an_answer(watched: Watched) -> None:
    """The test above therefore notices each of them."""
    names = {name for expression in TARGETS.values() for name in metrics_in(expression)}
    assert len(names) > 25
    for name in names:
        for key, expression in TARGETS.items():
            if name not in metrics_in(expression):
                continue
            renamed = re.sub(rf"(?<![\w:]){name}(?![\w:])", f"{name}_renamed", expression)
            for model in MODELS:
                assert not watched.run(renamed, whole(watched), model=model), (name, key)


def test_every_variable_has_values(watched: Watched) -> None:
    """The reader's choices come from Grafana's own queries."""
    expected = {
        "instance": set(watched.fleet.instances),
        "model": set(MODELS),
        "baseline": {"stable", "canary"},
    }
    for uid, board in FILES.items():
        for variable in board["templating"]["list"]:
            if variable["type"] == "custom":
                names = dict(one.split(" : ") for one in variable["query"].split(", "))
                assert names[variable["current"]["text"]] == variable["current"]["value"]
                continue
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found
            match = {"match[]": found[1].replace("$model", "digits")}
            if ABSENT.search(found[1]):
                continue
            values = watched.fleet.watched.get(f"label/{found[2]}/values", **match)
            tokens = uid == "cohort-language-models" and found[2] == "model"
            assert set(values) == ({"smalltalk"} if tokens else expected[variable["name"]])


def test_dashboards_and_guide_know_the_labels_there_are(watched: Watched) -> None:
    """Each metric with samples is documented; every metric that the dashboards read is exposed."""
    exposition = httpx.get(f"{watched.fleet.replicas[0].url}/metrics").text
    recorded = {
        rule["record"]
        for path in RULES
        for group in read_yaml(path)["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    known = metrics_of(exposition) | OF_PROMETHEUS | recorded
    assert {name for query in TARGETS.values() for name in metrics_in(query)} <= known
    documented = {
        row.name: row.labels for row in documented_metrics() if not row.name.startswith(ELSEWHERE)
    }
    seen = set()
    for family in text_string_to_metric_families(exposition):
        name = family.name + ("_total" if family.type == "counter" else "")
        for sample in family.samples:
            seen.add(name)
            assert set(sample.labels) - {"le"} == documented[name], name
    occasional = {"model_inline_stalls_total"}  # a run held the event loop, on a busy machine
    stateful = {"model_sequences", "model_sequence_bytes", "model_sequences_idle_total"}
    some = ("model_step_", "model_cache_")  # this fleet lacks such models
    elsewhere = stateful | {name for name in documented if name.startswith(some)}
    assert documented.keys() - occasional - elsewhere == seen - occasional


def test_every_selector_of_the_rules_matches_something(watched: Watched) -> None:
    """So no metric and no label's name or value in them is misspelled."""
    for path in RULES:
        for group in read_yaml(path)["groups"]:
            for rule in group["rules"]:
                for selector in selectors_in(rule["expr"]):
                    elsewhere = selector.startswith(ELSEWHERE) or "balancer" in selector
                    if ":" not in selector.partition("{")[0] and not elsewhere:
                        assert watched.fleet.watched.wait_for(selector), (rule, selector)


def test_every_recording_rule_has_a_value(watched: Watched) -> None:
    """The load includes some of everything."""
    for path in RULES:
        for group in read_yaml(path)["groups"]:
            for rule in group["rules"]:
                if "record" in rule and not ABSENT.search(rule["record"]):
                    found = watched.fleet.watched.wait_for(rule["record"])
                    assert any(isfinite(sample.value) for sample in found), rule["record"]


# -- counts: as the client counted


def near(count: float) -> Any:
    """Equal, but for the window's one millisecond."""
    return pytest.approx(count, rel=2e-3)


def test_requests_are_those_the_clients_sent(watched: Watched) -> None:
    """The service's page shows them for each replica."""
    for instance, asked in watched.asked.items():
        span = watched.load[instance]
        (total,) = watched.ask(("cohort-service", "Requests", "A"), span, instance=instance)
        assert round(total.value) == asked.codes().total()
        assert total.value == near(asked.codes().total())
        rates = watched.ask(("cohort-service", "Requests by model", "A"), span, instance=instance)
        assert {one.labels["model"]: round(one.value * span.seconds) for one in rates} == {
            model: asked.codes(model).total() for model in MODELS
        }


def test_answers_are_those_the_clients_got(watched: Watched) -> None:
    """The model's page has them by version, variant and code, and by code a second."""
    for instance, asked in watched.asked.items():
        span = watched.load[instance]
        for model in MODELS:
            table = watched.ask(
                ("cohort-model", "Answers", "A"), span, model=model, instance=instance
            )
            got = {
                (one.label("version"), one.label("variant"), one.label("code")): round(one.value)
                for one in table
                if round(one.value)
            }
            ours = asked.counts(model)
            assert {key: count for key, count in got.items() if key[2] == "OK"} == {
                key: count for key, count in ours.items() if key[2] == "OK"
            }
            key = ("cohort-model", "Answers by outcome", "A")
            rates = watched.ask(key, span, model=model, instance=instance)
            by_code = {one.labels["code"]: round(one.value * span.seconds) for one in rates}
            assert +Counter(by_code) == asked.codes(model)
        (answered,) = watched.ask(
            ("cohort-service", "Valid requests answered", "A"), span, instance=instance
        )
        codes = asked.codes()
        failures = codes["NotReady"] + codes["Overloaded"]
        assert failures
        assert answered.value == near(codes["OK"] / (codes["OK"] + failures))


def test_refusals_are_those_the_clients_got(watched: Watched) -> None:
    """They are 429 and 503, as a rate a second."""
    for instance, asked in watched.asked.items():
        span = watched.load[instance]
        for model, reason in (("slow", "Overloaded"), ("digits", "NotReady")):
            key = ("cohort-model", "Rejected and cancelled", "A")
            (rate,) = watched.ask(key, span, model=model, instance=instance)
            assert rate.labels["reason"] == reason
            assert round(rate.value * span.seconds) == asked.codes(model)[reason] > 0


def test_rows_are_those_the_clients_sent(watched: Watched) -> None:
    """All runs of the flowers' model count."""
    for instance, asked in watched.asked.items():
        span = watched.load[instance]
        rates = watched.ask(("cohort-capacity", "Rows", "A"), span, instance=instance)
        (rows,) = (one.value * span.seconds for one in rates if one.labels["model"] == "iris")
        assert round(rows) == asked.rows


def test_a_rollout_is_what_the_clients_saw(watched: Watched) -> None:
    """Requests, shares and errors by variant; a copy of each good answer went to the shadow."""
    page = "cohort-rollout"
    for instance, asked in watched.asked.items():
        span = watched.load[instance]

        def by(title: str, label: str, letter: str = "A", at: Any = (span, instance)) -> Any:
            key = (page, title, letter)
            found = watched.ask(key, at[0], model="digits", instance=at[1])
            return {one.label(label): one.value for one in found}

        counts = asked.counts("digits")
        stable, canary = counts["1", "stable", "OK"], counts["3", "canary", "OK"]
        failed = asked.codes("digits")["InvalidInput"]  # its bright images only
        assert failed > 0
        requests = by("Requests", "variant")
        assert requests == {"stable": near(stable), "canary": near(canary + failed)}
        assert by("Errors", "variant") == {"canary": near(failed)}
        total = stable + canary + failed
        assert by("Share of requests", "variant")["stable"] == near(stable / total)
        share = failed / (canary + failed)
        assert by("Error share", "variant") == {"stable": 0, "canary": near(share)}
        beyond = by("Error share beyond the baseline's", "variant")
        assert beyond == {"stable": 0, "canary": near(share)}
        assert by("Weights", "variant") == {"stable": 2, "canary": 1}
        compared, different, dropped = (
            by("Shadow: copies", "version", letter)["4"] for letter in "ABC"
        )
        assert round(compared + dropped) == stable + canary
        assert different == compared > 0
        assert by("Shadow: disagreement", "version")["4"] == near(1)
        evidence = by("Guard: evidence against each limit", "limit")
        assert evidence.keys() == {"errors", "disagreement"}
        assert max(evidence.values()) < 1, "the canary would have been rolled back"


def test_what_the_operator_did_is_there(watched: Watched) -> None:
    """A rollback, counted by the replica that was asked; the variant's weight is 0 in both."""
    span = whole(watched)
    (rolled,) = watched.ask(("cohort-rollout", "Rolled back", "A"), span, model="slow")
    assert (dict(rolled.labels), rolled.value) == (
        {"variant": "b", "version": "2", "reason": "operator"},
        1,
    )
    for instance in watched.asked:
        weights = watched.ask(
            ("cohort-rollout", "Weights", "A"), span, model="slow", instance=instance
        )
        assert {one.labels["variant"]: one.value for one in weights} == {"a": 1, "b": 0}


def test_states_are_those_of_the_models(watched: Watched) -> None:
    """Each replica has eight good versions and one invalid, and one model is off its GPU."""
    span = whole(watched)
    (replicas,) = watched.ask(("cohort-service", "Replicas that answer", "A"), span)
    assert replicas.value == 2
    states = watched.ask(("cohort-service", "Versions by state", "A"), span)
    assert {one.labels["state"]: one.value for one in states if one.value} == {
        "READY": 16,
        "UNAVAILABLE": 2,
    }
    fallen = watched.ask(("cohort-service", "Versions on another provider than wanted", "A"), span)
    assert {one.labels["model"]: one.value for one in fallen if one.value} == {"iris": 2}


# -- times: in the bucket of the client's measurement


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_quantiles_lie_in_the_clients_bucket(watched: Watched, share: float) -> None:
    """A quantile is between the times in the answers and the times that callers waited.

    Usually the two are in one bucket; if an edge is between them, either side is right.
    """
    for instance, timed in watched.timed.items():
        span = watched.one_by_one[instance]
        rank = ceil(share * COUNT) - 1
        lowest = bisect_left(DURATION_BUCKETS, sorted(one.told for one in timed)[rank])
        highest = bisect_left(DURATION_BUCKETS, sorted(one.waited for one in timed)[rank])
        for page in ("cohort-model", "cohort-rollout"):
            key = (page, "Time to answer", "A")
            found = watched.ask(key, span, model="slow", instance=instance, quantile=str(share))
            (quantile,) = (one.value for one in found if isfinite(one.value))
            assert lowest <= bisect_left(DURATION_BUCKETS, quantile) <= highest, (quantile, timed)


def test_times_fit_together(watched: Watched) -> None:
    """Slow requests one by one have one row a run, and a run is within its request's time."""
    for instance, timed in watched.timed.items():
        span = watched.one_by_one[instance]

        def value(
            title: str, letter: str, page: str = "cohort-model", at: Any = (instance, span)
        ) -> float:
            found = watched.ask((page, title, letter), at[1], model="slow", instance=at[0])
            return next(one.value for one in found if isfinite(one.value))

        assert value("Rows and requests a run", "A") == value("Rows and requests a run", "B") == 1
        in_all, queued, run = (value("Where the time goes", letter) for letter in "ABC")
        assert 0 <= queued <= in_all
        assert 0 < run <= in_all <= sum(one.waited for one in timed) / COUNT
        busy = value("Runs in flight", "A", "cohort-capacity")
        assert busy * span.seconds == near(run * COUNT)
        assert 0 <= value("Share of time spent waiting", "A", "cohort-capacity") <= 1
