"""The objects of deploy/kubernetes, rendered by the real tools and read by the real schemas."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cohort.settings import Settings, variable
from deploy.kubernetes.rules import FILE, prometheus_rule
from tests.e2e.processes import ROOT
from tests.kubernetes.rendered import (
    CHART,
    OVERLAYS,
    TOOLS,
    Object,
    Objects,
    container,
    environment,
    everything,
    overlay,
    pod_spec,
    run,
    templated,
    with_components,
    with_tools,
)

pytestmark = with_tools

OF_CRDS = ("gateway.networking.k8s.io/v1", "keda.sh/v1alpha1", "monitoring.coreos.com/v1")
RELEASES = ("1.34", "1.35", "1.36", "1.37")

CHOICES = {
    "keys": ["--set", "keys=cohort-keys"],
    "state-claim": ["--set", "state.claim=true"],
    "models-claim": ["--set", "models.source=claim"],
    "models-image": [
        *("--set", "models.source=volume"),
        *("--set", "models.image=registry.example.com/models:1"),
    ],
    "models-remote": ["--set", "models.source=remote"],
    "hpa": ["--set", "autoscaling.kind=hpa"],
    "keda": ["--set", "autoscaling.kind=keda"],
    "gateway": ["--set", "gateway.enabled=true"],
    "monitoring": ["--set", "monitoring.enabled=true"],
    "metrics-key": ["--set", "monitoring.key=cohort-metrics-key"],
}
"""The values of the chart for each component."""


def of_crds(objects: Objects) -> list[Object]:
    """Return the objects whose kinds are not Kubernetes' own."""
    return [one for one in objects.values() if one["apiVersion"] in OF_CRDS]


def problems(objects: list[Object]) -> list[str]:
    """Return what the validators of custom resources find, a line each."""
    node = ROOT / ".venv-clients/bin/node"
    script = ROOT / "tests/kubernetes/schemas/check.mjs"
    return run([node, script, TOOLS], stdin=json.dumps(objects)).splitlines()


@pytest.mark.parametrize("name", OVERLAYS)
def test_both_forms_render_the_same_objects(name: str) -> None:
    """Kustomize's overlay and the chart with its values are equal, field by field."""
    assert templated("--values", CHART / f"values-{name}.yaml") == overlay(name)


@pytest.mark.parametrize("name", CHOICES)
def test_each_component_is_a_choice_of_the_chart(name: str, tmp_path: Path) -> None:
    """What a component does to the base, the chart does by its values."""
    assert templated(*CHOICES[name]) == with_components([name], tmp_path)


@pytest.mark.parametrize("models", ["models-claim", "models-image", "models-remote"])
@pytest.mark.parametrize("order", [1, -1])
def test_components_may_be_combined(models: str, order: int, tmp_path: Path) -> None:
    """In any order, the objects are those of the chart with the values of all."""
    names = ["keys", "state-claim", models, "hpa", "gateway", "monitoring"][::order]
    options = [option for name in names for option in CHOICES[name]]
    assert templated(*options) == with_components(names, tmp_path)


def test_prometheus_sends_the_key_that_metrics_need(tmp_path: Path) -> None:
    """From the same Secret as the server's. The objects are those of the chart."""
    names = ["monitoring", "metrics-key"]
    objects = with_components(names, tmp_path)
    assert templated(*[option for name in names for option in CHOICES[name]]) == objects
    secret = {"name": "cohort-metrics-key", "key": "key"}
    (monitor,) = (one for one in objects.values() if one["kind"] == "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": secret}
    variables = {one["name"]: one for one in container(objects)["env"]}
    assert variables["COHORT_METRICS_KEY"]["valueFrom"] == {"secretKeyRef": secret}
    assert problems(of_crds(objects)) == []


def test_there_is_a_choice_for_each_component() -> None:
    """The list above is complete."""
    assert {one.name for one in (CHART.parent / "components").iterdir()} == set(CHOICES)


@pytest.mark.parametrize("name", OVERLAYS)
def test_custom_resources_are_valid(name: str) -> None:
    """The CRDs' own types take every field of them."""
    assert problems(of_crds(overlay(name))) == []


def test_an_unknown_field_is_found() -> None:
    """The check above reads all: a misspelt field, a wrong value, at any depth."""
    objects = copy.deepcopy(of_crds(overlay("gpu")) + of_crds(overlay("monitoring")))
    for one in objects:
        spec = one["spec"]
        match one["kind"]:
            case "ScaledObject":
                spec["triggers"][0]["metrictype"] = "Value"
            case "HTTPRoute":
                spec["rules"][0]["backendRefs"][0]["prt"] = 80
                spec["rules"][1]["timeouts"]["request"] = "soon"
            case "GRPCRoute":
                spec["rulez"] = []
            case "PodMonitor":
                spec["podMetricsEndpoints"][0]["intervall"] = "15s"
            case "PrometheusRule":
                spec["groups"][0]["rules"][0]["allert"] = "x"
    found = "\n".join(problems(objects))
    for name in ("metrictype", "prt", "request", "rulez", "intervall", "allert"):
        assert re.search(rf"/{name}: ", found), found


@everything
@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_knows_every_field(release: str, tmp_path: Path) -> None:
    """`kubernetes-validate --strict` passes every object of the overlays and components."""
    rendered = {name: overlay(name) for name in OVERLAYS}
    for name in CHOICES:
        (tmp_path / name).mkdir()
        rendered[f"with {name}"] = with_components([name], tmp_path / name)
    lists = [one for objects in rendered.values() for one in objects.values()]
    own = [one for one in lists if one["apiVersion"] not in OF_CRDS]
    file = tmp_path / "objects.yaml"
    with file.open("w") as out:
        YAML(typ="safe").dump_all(own, out)
    python = ROOT / ".venv-kubernetes/bin/python"
    command = [python, "-m", "kubernetes_validate", "--strict", "-k", release, file]
    printed = run(command).splitlines()
    assert len(printed) == len(own) > 50
    assert all(f" against version {release}" in line for line in printed), printed


@everything
def test_helm_lints_the_chart() -> None:
    """With the values of each overlay, and without a warning."""
    for name in OVERLAYS:
        values = CHART / f"values-{name}.yaml"
        printed = run([TOOLS / "bin/helm", "lint", "--strict", CHART, "--values", values])
        assert "[WARNING]" not in printed


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_pod_has_time_to_end(name: str) -> None:
    """The grace outlasts preStop, notice, drain and the 8 s after which a parent kills."""
    env = environment(container(overlay(name)))
    seconds = container(overlay(name))["lifecycle"]["preStop"]["sleep"]["seconds"]
    seconds += float(env["COHORT_DRAIN_NOTICE_SECONDS"]) + float(env["COHORT_DRAIN_SECONDS"]) + 8
    assert pod_spec(overlay(name))["terminationGracePeriodSeconds"] > seconds


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_ending_pod_is_out_before_its_server_stops(name: str) -> None:
    """The readiness probe fails within the notice, also if the endpoints were slow."""
    probe = container(overlay(name))["readinessProbe"]
    notice = float(environment(container(overlay(name)))["COHORT_DRAIN_NOTICE_SECONDS"])
    assert probe["periodSeconds"] * probe["failureThreshold"] < notice


@pytest.mark.parametrize("name", [*OVERLAYS, *CHOICES])
def test_every_variable_is_a_setting(name: str, tmp_path: Path) -> None:
    """A typo in a manifest would only be a warning in a log."""
    objects = overlay(name) if name in OVERLAYS else with_components([name], tmp_path)
    known = {variable(field) for field in Settings.model_fields}
    assert environment(container(objects)).keys() <= known


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_meet_the_restricted_standard(name: str) -> None:
    """Pod Security's level `restricted` lets every container of the pod in."""
    spec = pod_spec(overlay(name))
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user
    ids = spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]
    assert ids == (int(user[1]), int(user[2]))
    for one in [*spec["initContainers"], *spec["containers"]]:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["requests"] == one["resources"]["limits"]  # the last to be evicted


def test_the_image_and_the_pod_agree() -> None:
    """What the manifest sets as the image does has the same value; the command is the image's."""
    text = (ROOT / "Dockerfile").read_text()
    of_image = dict(re.findall(r"(COHORT_\w+)=(\S+)", text))
    env = environment(container(overlay("cpu")))
    assert of_image.items() <= env.items()
    entry, command = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
    assert container(overlay("cpu"))["command"] == json.loads(entry) + json.loads(command)


def test_the_rules_are_those_of_prometheus() -> None:
    """After a change of deploy/prometheus/rules: python -m deploy.kubernetes."""
    assert FILE.read_text() == prometheus_rule()
    groups: list[Any] = []
    for file in sorted((ROOT / "deploy/prometheus/rules").glob("*.yml")):
        groups += YAML(typ="safe").load(file.read_text())["groups"]
    rendered = overlay("monitoring")["PrometheusRule", "cohort"]["spec"]["groups"]
    assert without_spaces(rendered) == without_spaces(groups)


def without_spaces(groups: list[Any]) -> list[Any]:
    """Return the groups with each run of spaces as one: PromQL does not see the difference."""
    return list(json.loads(re.sub(r"(\\n|\s)+", " ", json.dumps(groups))))


def test_the_dashboards_are_those_of_grafana() -> None:
    """Each in a ConfigMap that Grafana's sidecar finds."""
    found = {
        name: text
        for (kind, _), one in overlay("monitoring").items()
        if kind == "ConfigMap" and one["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name, text in one["data"].items()
    }
    files = (ROOT / "deploy/grafana/dashboards").glob("*.json")
    assert found == {file.name: file.read_text() for file in files}


def test_what_is_scraped_is_what_the_rules_ask_for() -> None:
    """The job is named by a label of the pods, and the port is one of theirs."""
    objects = overlay("monitoring")
    spec = objects["PodMonitor", "cohort"]["spec"]
    labels = objects["Deployment", "cohort"]["spec"]["template"]["metadata"]["labels"]
    assert labels[spec["jobLabel"]] == "cohort"
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    ports = {one["name"] for one in container(objects)["ports"]}
    assert {one["port"] for one in spec["podMetricsEndpoints"]} <= ports


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_refers_to_pods_finds_them(name: str) -> None:
    """Services, the budget and the policy select the pods; their ports are the container's."""
    objects = overlay(name)
    labels = objects["Deployment", "cohort"]["spec"]["template"]["metadata"]["labels"]
    ports = {one["name"] for one in container(objects)["ports"]}
    for service in ("cohort", "cohort-pods"):
        spec = objects["Service", service]["spec"]
        assert spec["selector"] == labels
        assert {one["targetPort"] for one in spec["ports"]} == ports
    assert objects["PodDisruptionBudget", "cohort"]["spec"]["selector"]["matchLabels"] == labels
    policy = objects["NetworkPolicy", "cohort"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert {one["port"] for rule in policy["ingress"] for one in rule["ports"]} == ports


def test_what_keda_asks_for_is_scraped() -> None:
    """The overlay with KEDA has pods that Prometheus may reach, or it never has numbers."""
    objects = overlay("gpu")
    trigger = objects["ScaledObject", "cohort"]["spec"]["triggers"][0]["metadata"]
    assert trigger["ignoreNullValues"] == "false"
    assert ("PodMonitor", "cohort") in objects
    namespaces = [
        source["namespaceSelector"]["matchLabels"]
        for rule in objects["NetworkPolicy", "cohort"]["spec"]["ingress"]
        for source in rule["from"]
        if "namespaceSelector" in source
    ]
    namespace = trigger["serverAddress"].split(".")[1].split(":")[0]
    assert {"kubernetes.io/metadata.name": namespace} in namespaces


def test_only_predictions_are_sent_again() -> None:
    """Admin routes and sequences change something; a sequence stays at its replica."""
    rules = overlay("monitoring")["HTTPRoute", "cohort"]["spec"]["rules"]
    assert [one["name"] for one in rules if "retry" in one] == ["predictions"]
    assert [one["name"] for one in rules if "sessionPersistence" in one] == ["sequences"]
    (match,) = next(one for one in rules if one["name"] == "sequences")["matches"]
    assert match["headers"][0]["name"] == "X-Sequence-Id"
