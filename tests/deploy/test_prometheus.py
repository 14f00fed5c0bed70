"""The rules and alerts of deploy/prometheus, by promtool and by a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import trustme

from cohort import errors
from cohort.http.errors import http_status
from tests.certificates import serve_with, trusting
from tests.deploy.prometheus import (
    DEPLOY,
    RULES,
    alertmanager,
    configuration,
    hurried_rules,
    program,
    prometheus,
    read_yaml,
)
from tests.deploy.promql import (
    OF_BALANCERS,
    OF_PROMETHEUS,
    documented_metrics,
    metrics_in,
    metrics_of,
)
from tests.e2e.broken_digits import copy_digits
from tests.e2e.processes import MODELS, ROOT, cohort
from tests.waiting import PATIENCE

FOLDER = DEPLOY / "prometheus"
CASES = sorted((FOLDER / "tests").glob("*.yml"))
RUNBOOK = ROOT / "docs" / "operations" / "runbook.md"

ALL: list[dict[str, Any]] = [
    rule for path in RULES for group in read_yaml(path)["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in ALL if "alert" in rule]
RECORDED: dict[str, str] = {rule["record"]: rule["expr"] for rule in ALL if "record" in rule}
NAMES = [f"{rule['alert']}-{rule['labels']['severity']}" for rule in ALERTS]


@cache
def written_cases() -> dict[str, list[dict[str, Any]]]:
    """The cases for promtool by file, read in the process that needs them: they are long."""
    return {path.stem: read_yaml(path)["tests"] for path in CASES}


def promtool(*arguments: str | Path) -> None:
    """Run it with rare garbage collection, in a third of the time; fail with its output."""
    done = subprocess.run(
        [program("promtool"), *arguments],
        env={**os.environ, "GOGC": "800"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_configuration() -> None:
    """It is valid, and so are all rule files it names."""
    promtool("check", "config", FOLDER / "prometheus.yml")
    promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)


def test_amtool_accepts_the_configuration() -> None:
    """Alertmanager's checker accepts its configuration."""
    subprocess.run(
        [program("amtool"), "check-config", DEPLOY / "alertmanager" / "alertmanager.yml"],
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_not_when_they_should_not(cases: Path) -> None:
    """promtool checks them on recorded series."""
    promtool("test", "rules", cases)


def sources(expression: str) -> set[str]:
    """The metrics an expression comes down to, through recording rules."""
    found = set()
    for name in metrics_in(expression):
        found |= sources(RECORDED[name]) if ":" in name else {name}
    return found


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_every_alert_has_a_case_of_either_kind(alert: Mapping[str, Any]) -> None:
    """One where it fires and one, on the same metrics, where it does not."""
    severity = alert["labels"]["severity"]
    fires, silent = 0, 0
    for tests in written_cases().values():
        for case in tests:
            given = {series["series"].partition("{")[0] for series in case["input_series"]}
            for look in case.get("alert_rule_test", ()):
                if look["alertname"] != alert["alert"]:
                    continue
                expected = {one["exp_labels"]["severity"] for one in look["exp_alerts"]}
                fires += severity in expected
                silent += severity not in expected and given >= sources(alert["expr"])
    assert fires, "no case in which it fires"
    assert silent, "no case in which it does not"


PAGES_RIGHTLY = (
    "CohortLatencyBudgetBurn",
    "CohortRefusedRunsBudgetBurn",
    "CohortCallersBudgetBurn",
    "CohortHalfOfReplicas",
    "CohortLastReplica",
    "CohortModelUnavailable",
    "CohortNotReady",
    "CohortProviderFallback",
    "CohortStateFolder",
    "CohortVersionHeldBack",
    "CohortVersionUnavailable",
    "CohortWebhooksFail",
)


@pytest.mark.parametrize("alert", PAGES_RIGHTLY)
def test_what_once_paged_wrongly_or_not_at_all_was_recorded(alert: str) -> None:
    """`make recorded` recorded cases of real processes in which it fires and is silent."""
    names = [case["name"] for case in written_cases()["recorded"]]
    assert any(name.startswith(f"{alert} fires: ") for name in names)
    assert any(name.startswith(f"{alert} is silent: ") for name in names)


def headings(page: Path) -> dict[str, str]:
    """The sections of a page by anchor, as forges make it from the heading."""
    parts = re.split(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-"): text
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_every_alert_says_what_to_do(alert: Mapping[str, Any]) -> None:
    """It has a summary, a description, a known severity, and a link to cause, check and cure."""
    notes = alert["annotations"]
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert notes["summary"]
    assert notes["description"]
    page, _, anchor = notes["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower()
    entry = headings(ROOT / page)[anchor]
    for part in ("**Cause:**", "**Check:**", "**Fix:**"):
        assert part in entry


WINDOWS = re.compile(r"rate(\d+)(\w) > ([\d.]+) \* ([\d.]+) and \S+rate(\d+)(\w) > \3 \* \4\)")
ROW = re.compile(r"^\| (\w+) \| ([\d.]+) \| (\d+) (\w)\w* and (\d+) (\w)\w* \|", re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("CohortErrorBudgetBurn", "0.001"),
        ("CohortLatencyBudgetBurn", "0.01"),
        ("CohortRefusedRunsBudgetBurn", "0.01"),
        ("CohortCallersBudgetBurn", "0.001"),
    ],
)
def test_the_guide_has_the_burn_rates_of_the_alerts(name: str, budget: str) -> None:
    """It has their windows and severities, which are the same for all budgets."""
    written = {
        (alert["labels"]["severity"], found[2], *found[:2], *found[4:])
        for alert in ALERTS
        if alert["alert"] == name
        for found in WINDOWS.findall(alert["expr"])
        if found[3] == budget
    }
    guide = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    assert len(written) == 4
    assert written == set(ROW.findall(guide))


def test_the_runbook_has_no_entry_without_an_alert() -> None:
    """An operator cannot look for an alert that is gone."""
    assert set(headings(RUNBOOK)) - {"runbook"} == {alert["alert"].lower() for alert in ALERTS}


PAGES = [RUNBOOK, ROOT / "docs" / "operations" / "monitoring.md", *DEPLOY.glob("[pg]r*/README.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_resolve(page: Path) -> None:
    """The file exists, and it has the heading."""
    links = re.findall(r"\]\((?!https?:)([^)]*)\)", page.read_text())
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def unknown_metrics(expressions: Mapping[str, str], exposition: str) -> dict[str, set[str]]:
    """Return the metrics that each expression reads and that do not exist."""
    known = metrics_of(exposition) | RECORDED.keys() | OF_PROMETHEUS | OF_BALANCERS
    return {
        name: unknown
        for name, expression in expressions.items()
        if (unknown := metrics_in(expression) - known)
    }


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a real server."""
    folder, ca = tmp_path_factory.mktemp("server"), trustme.CA()
    settings: dict[str, Any] = dict(serve_with(ca, folder))
    settings |= {"webhooks": "http://127.0.0.1:9", "webhook_secret_file": folder / "secret"}
    (folder / "secret").write_text("signed-by-this")
    with cohort(MODELS, folder, trust=trusting(ca, folder), **settings) as server:
        return server.get("/metrics").text


def test_the_guide_lists_the_metrics_there_are(exposition: str) -> None:
    """Each is listed with its kind, except those of features that this server does not use."""
    exposed = set(re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.MULTILINE))
    absent = ("api_key", "trusted_keys", "remote_repository_")
    listed = {
        (row.name, row.kind) for row in documented_metrics() if not row.name.startswith(absent)
    }
    assert listed == exposed


def test_rules_read_what_a_server_exposes(exposition: str) -> None:
    """Every name in them is a metric of a real server; one that is renamed is noticed."""
    rules = {rule.get("alert") or rule["record"]: rule["expr"] for rule in ALL}
    assert unknown_metrics(rules, exposition) == {}
    renamed = exposition.replace("model_batch_rows", "model_batch_lines")
    assert unknown_metrics(rules, renamed) == {
        "version:batch_rows:mean5m": {"model_batch_rows_sum", "model_batch_rows_count"}
    }


def test_budgets_are_spent_by_our_failures_alone() -> None:
    """A code that a caller is to blame for is left out, by the same table that gives statuses."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.CohortError)
    ]
    statuses = {kind: http_status(kind.__new__(kind)) for kind in kinds}
    callers = {
        kind.__new__(kind).code
        for kind, status in statuses.items()
        if kind is errors.Cancelled or (status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS)
    }
    valid, failed = (
        set(re.search(r'code!~"([^"]+)"', RECORDED[name])[1].split("|"))  # type: ignore[index]
        for name in ("instance_model:valid_requests:sum", "instance_model:failures:sum")
    )
    assert valid == callers
    assert failed == callers | {"OK"}


@contextmanager
def receiver() -> Iterator[tuple[str, Queue[dict[str, Any]]]]:
    """A webhook: its address, and the alerts it gets."""
    heard: Queue[dict[str, Any]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            for alert in body["alerts"]:
                heard.put({"receiver": body["receiver"], **alert})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", heard
        finally:
            server.shutdown()
            thread.join()


def test_a_broken_version_reaches_who_is_on_duty(tmp_path: Path) -> None:
    """A server, Prometheus and Alertmanager, all real: the ticket comes, and is resolved.

    Only the waiting times are shortened, in a copy.
    """
    models = tmp_path / "models"
    copy_digits(models)
    rules = hurried_rules(tmp_path)
    with receiver() as (url, heard), cohort(models, tmp_path) as server:
        config = read_yaml(DEPLOY / "alertmanager" / "alertmanager.yml")
        config["route"] |= {"group_wait": "0s", "group_interval": "1s"}
        for one in config["receivers"]:
            one["webhook_configs"] = [{"url": url}]
        with alertmanager(tmp_path, config) as address:
            targets = {"cohort": [server.url.removeprefix("http://")], "alertmanager": [address]}
            config = configuration(targets, rules=rules, seconds=0.5)
            with prometheus(tmp_path, config) as watched:
                watched.wait_for('up{job="cohort"} == 1')
                broken = models / "digits" / "3"
                broken.mkdir()
                (broken / "model.onnx").write_bytes(b"no model at all")
                fired = get(heard, "CohortVersionUnavailable", "firing")
                (broken / "model.onnx").unlink()
                broken.rmdir()
                over = get(heard, "CohortVersionUnavailable", "resolved")
    assert fired["receiver"] == "tickets"
    labels = {"severity": "warning", "model": "digits", "version": "3"}
    assert fired["labels"] == {"alertname": "CohortVersionUnavailable", **labels}
    assert fired["annotations"]["summary"] == "Version 3 of digits cannot be served"
    assert over["labels"] == fired["labels"]


def get(heard: Queue[dict[str, Any]], name: str, status: str) -> dict[str, Any]:
    """The next such alert; others may come between."""
    while True:
        alert = heard.get(timeout=PATIENCE)
        if (alert["labels"]["alertname"], alert["status"]) == (name, status):
            return alert
