"""Write components/monitoring/rules.yaml: the rules of deploy/prometheus as a PrometheusRule."""

from __future__ import annotations

from deploy.kubernetes.rules import FILE, prometheus_rule

FILE.write_text(prometheus_rule())
