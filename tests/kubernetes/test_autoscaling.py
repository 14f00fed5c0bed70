"""The queries of the autoscalers, on a server that a real Prometheus scrapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.callers import callers, put
from tests.deploy.prometheus import configuration, prometheus, read_yaml
from tests.e2e.processes import cohort
from tests.kubernetes.rendered import FOLDER, everything, overlay, with_tools
from tests.waiting import wait_until

pytestmark = [everything, with_tools]


def test_the_queries_of_hpa_and_keda_have_numbers(tmp_path: Path) -> None:
    """Under load each has a number; without requests KEDA's have 0.

    Without a scraped pod they have no number, which is a failure for KEDA.
    """
    put(tmp_path / "models")
    triggers = overlay("gpu")["ScaledObject", "cohort"]["spec"]["triggers"]
    (rule,) = read_yaml(FOLDER / "components/hpa/adapter-values.yaml")["rules"]["custom"]
    wanted = overlay("cpu")["HorizontalPodAutoscaler", "cohort"]["spec"]["metrics"][1]
    assert rule["name"]["as"] == wanted["pods"]["metric"]["name"]
    of_pod = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
    of_pod = of_pod.replace("<<.LabelMatchers>>", 'namespace="default",pod=~"cohort-1"')
    with cohort(tmp_path / "models", tmp_path) as server:
        address = server.url.removeprefix("http://")
        config = configuration({"cohort": [address]}, rules=[])
        (job,) = [one for one in config["scrape_configs"] if one["job_name"] == "cohort"]
        job["static_configs"][0]["labels"] = {"namespace": "default", "pod": "cohort-1"}
        with prometheus(tmp_path, config) as watched:
            watched.wait_for('up{job="cohort"} == 1')
            queries = [one["metadata"]["query"] for one in triggers]
            assert [watched.query(one)[0].value for one in queries] == [0, 0]
            unscraped = [one.replace('"cohort"', '"unscraped"') for one in queries]
            assert [watched.query(one) for one in unscraped] == [[], []]
            with callers(server):
                wait_until(lambda: all(watched.value(one) > 0 for one in [*queries, of_pod]))
            (found,) = watched.query(of_pod)
            assert found.labels == {"pod": "cohort-1"}
            assert [one.labels for one in watched.query(rule["seriesQuery"])]


def test_a_threshold_is_within_what_a_pod_can_reach() -> None:
    """The share of busy runs is below 1 for each pod, and the wait is below a model's deadline."""
    triggers = {
        one["name"]: float(one["metadata"]["threshold"])
        for one in overlay("gpu")["ScaledObject", "cohort"]["spec"]["triggers"]
    }
    metric = overlay("cpu")["HorizontalPodAutoscaler", "cohort"]["spec"]["metrics"][1]
    assert 0 < triggers["saturation"] < 1
    assert re.fullmatch(r"\d+m", metric["pods"]["target"]["averageValue"])
    assert triggers["queue"] == pytest.approx(
        int(metric["pods"]["target"]["averageValue"][:-1]) / 1000
    )
