"""The objects that Kustomize and Helm make of deploy/kubernetes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.e2e.processes import ROOT

FOLDER = ROOT / "deploy/kubernetes"
CHART = FOLDER / "chart"
OVERLAYS = ("cpu", "gpu", "monitoring")
TOOLS = ROOT / ".npm-kubernetes"

Object = dict[str, Any]
Objects = dict[tuple[str, str], Object]
"""Objects by kind and name."""

everything = pytest.mark.skipif(os.environ.get("KUBERNETES") != "all", reason="`make kubernetes`")
with_tools = pytest.mark.skipif(
    not (TOOLS / "npm.stamp").exists(),
    reason="needs kubectl and Helm: make .npm-kubernetes/npm.stamp",
)


def run(command: Sequence[object], *, stdin: str = "") -> str:
    """Run a program, and return its standard output. Fails with its output if it fails."""
    done = subprocess.run(
        [*map(str, command)], input=stdin, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def kustomized(folder: Path) -> Objects:
    """Return the objects of a kustomization."""
    return _objects(run([TOOLS / "bin/kubectl", "kustomize", folder]))


@cache
def overlay(name: str) -> Objects:
    """Return the objects of an overlay."""
    return kustomized(FOLDER / "overlays" / name)


@cache
def templated(*options: object) -> Objects:
    """Return the objects of the chart for the release `cohort`."""
    return _objects(run([TOOLS / "bin/helm", "template", "cohort", CHART, *options]))


def with_components(names: Sequence[str], folder: Path) -> Objects:
    """Return the objects of the base with components, from a kustomization in `folder`."""
    way = os.path.relpath(FOLDER.resolve(), folder.resolve())
    components = "".join(f"  - {way}/components/{name}\n" for name in names)
    (folder / "kustomization.yaml").write_text(
        f"resources:\n  - {way}/base\ncomponents:\n{components}"
    )
    return kustomized(folder)


def container(objects: Mapping[tuple[str, str], Object]) -> Object:
    """Return the server's container."""
    return dict(pod_spec(objects)["containers"][0])


def pod_spec(objects: Mapping[tuple[str, str], Object]) -> Object:
    """Return the spec of the Deployment's pods."""
    return dict(objects["Deployment", "cohort"]["spec"]["template"]["spec"])


def environment(of: Object) -> dict[str, str]:
    """Return the variables of a container that have a value."""
    return {one["name"]: one["value"] for one in of["env"] if "value" in one}


def _objects(text: str) -> Objects:
    found = [one for one in YAML(typ="safe", pure=False).load_all(text) if one]
    for one in found:
        if one["kind"] == "Deployment":
            _sort(one["spec"]["template"]["spec"])
    objects = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(objects) == len(found), "two objects have the same kind and name"
    return objects


def _sort(spec: Object) -> None:
    """Sort the lists in which Kubernetes finds an entry by its name: a patch reorders them."""
    spec["volumes"].sort(key=itemgetter("name"))
    for one in spec["containers"]:
        one["env"].sort(key=itemgetter("name"))
        one["volumeMounts"].sort(key=itemgetter("mountPath"))
