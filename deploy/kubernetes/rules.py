"""The rules of deploy/prometheus in the form of the Prometheus operator."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE = HERE / "components/monitoring/rules.yaml"
RULES = HERE.parent / "prometheus/rules"

HEAD = """\
# yamllint disable rule:line-length rule:comments-indentation
# Written by `python -m deploy.kubernetes` from deploy/prometheus/rules.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: cohort}
spec:
  groups:
"""


def prometheus_rule() -> str:
    """Return the text of one PrometheusRule with all groups, in the order of the files."""
    groups = []
    for file in sorted(RULES.glob("*.yml")):
        _, found, text = file.read_text().partition("\ngroups:\n")
        if not found:
            raise SystemExit(f"{file}: expected a line 'groups:'")
        text = text.replace(": >-\n", ": |-\n")  # Kustomize adds lines to folded text
        groups += [f"  {line}" if line else "" for line in text.rstrip("\n").split("\n")]
    return HEAD + "\n".join(groups) + "\n"
