"""Values of the chart that the overlays do not set."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.kubernetes.rendered import (
    CHART,
    TOOLS,
    container,
    environment,
    overlay,
    pod_spec,
    run,
    templated,
    with_tools,
)

pytestmark = with_tools


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("autoscaling.kind=vpa", r"'/autoscaling/kind': value must be one of '', 'hpa', 'keda'"),
        ("models.source=disk", r"'/models/source': value must be one of 'copy', 'volume'"),
        ("models.sorce=claim", r"'/models': additional properties 'sorce' not allowed"),
        ("models.storage=", r"'/models/storage': minLength"),
        ("image=", r"'/image': minLength"),
        ("settings.ACCESS_LOG=true", "'ACCESS_LOG' does not match pattern"),
        ("settings.COHORT_DRAIN_SECONDS=300", "settings.COHORT_DRAIN_SECONDS: the chart sets"),
        ("stop.drain=60", "or pods are killed while they answer"),
        ("stop.grace=48", "or pods are killed while they answer"),
        ("stop.preStop=0", r"'/stop/preStop': minimum"),
    ],
)
def test_a_wrong_value_is_explained(setting: str, says: str) -> None:
    """The chart refuses it, and names the values that it accepts."""
    with pytest.raises(AssertionError, match=says):
        templated("--set", setting)


@pytest.mark.parametrize("name", ["no", "1st", "my.release"])
def test_a_release_has_a_name_that_a_service_can_have(name: str) -> None:
    """Helm accepts more names than Kubernetes, and YAML reads some as something else."""
    with pytest.raises(AssertionError, match="the release names the Service"):
        run([TOOLS / "bin/helm", "template", name, CHART])


def test_settings_reach_the_server_as_they_are_written(tmp_path: Path) -> None:
    """Also large numbers, fractions, false and 0, and those that the chart would set itself."""
    settings = {
        "COHORT_MAX_CONCURRENCY": 10_000_000,
        "COHORT_WATCH_SECONDS": 0.5,
        "COHORT_ACCESS_LOG": False,
        "COHORT_HOST": "::",
        "COHORT_WATCHDOG_SECONDS": 0,
        "OTEL_TRACES_EXPORTER": "otlp",
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"settings": settings}))
    env = environment(container(templated("--values", file)))
    wanted = {name: str(value) for name, value in settings.items()}
    assert wanted | {"COHORT_ACCESS_LOG": "false"} == {name: env[name] for name in settings}


def test_a_claim_that_exists_is_used_and_not_made() -> None:
    """With a name, the chart makes no claim."""
    objects = templated("--set", "models.source=claim,models.claim=nfs")
    assert not [kind for kind, _ in objects if kind == "PersistentVolumeClaim"]
    volumes = {one["name"]: one for one in pod_spec(objects)["volumes"]}
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "nfs", "readOnly": True}


def test_the_routes_fit_the_standard_channel() -> None:
    """Without the experimental fields, the routes are otherwise the same."""
    values = ("--values", CHART / "values-monitoring.yaml")
    standard = templated(*values, "--set", "gateway.experimental=false")
    for kind in ("HTTPRoute", "GRPCRoute"):
        spec = overlay("monitoring")[kind, "cohort"]["spec"]
        rules = [
            {key: one[key] for key in one if key not in {"retry", "sessionPersistence"}}
            for one in spec["rules"]
        ]
        assert standard[kind, "cohort"]["spec"] == spec | {"rules": rules}


def test_a_second_release_has_its_own_pods_and_no_second_rules() -> None:
    """Each object is named by the release, and what selects pods selects those of the release."""
    options = ("--values", CHART / "values-monitoring.yaml", "--set", "monitoring.rules=false")
    text = run([TOOLS / "bin/helm", "template", "second", CHART, *options])
    assert re.findall(r"^kind: (PrometheusRule)$", text, re.MULTILINE) == []
    assert "grafana_dashboard" not in text
    names = re.findall(r"^metadata:\n  name: (\S+)$", text, re.MULTILINE)
    assert len(names) > 8
    assert all(re.fullmatch(r"second(-\w+)?", name) for name in names), names
    assert "instance: cohort" not in text
    assert text.count("app.kubernetes.io/name: cohort") == text.count("instance: second")


def test_what_a_cluster_asks_for_is_added(tmp_path: Path) -> None:
    """Labels for the operator, a Gateway's namespace, a registry's Secret, a cloud's role."""
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"}
    values = {
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
        "gateway": {"enabled": True, "namespace": "infra"},
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": {"annotations": role},
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    objects = templated("--values", file)
    for kind in ("PodMonitor", "PrometheusRule"):
        assert objects[kind, "cohort"]["metadata"]["labels"]["release"] == "prometheus"
    for kind in ("HTTPRoute", "GRPCRoute"):
        parents = objects[kind, "cohort"]["spec"]["parentRefs"]
        assert parents == [{"name": "cohort-gateway", "namespace": "infra"}]
    assert pod_spec(objects)["imagePullSecrets"] == [{"name": "registry"}]
    assert objects["ServiceAccount", "cohort"]["metadata"]["annotations"] == role
