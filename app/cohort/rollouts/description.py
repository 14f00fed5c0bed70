"""A rollout in plain values, ready to be written as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from cohort.rollouts.evidence import VariantEvidence
from cohort.rollouts.judgement import Guard, threshold_of
from cohort.rollouts.live import LiveRollout
from cohort.rollouts.shadow import ShadowRunner
from cohort.rollouts.units import OutcomeStream


def describe_rollout(
    live: LiveRollout, ready: Collection[int], batching_lost: Mapping[int, str]
) -> dict[str, Any]:
    """Describe variants with their shares of callers, the decisions with reasons, and the evidence.

    live: The rollout.
    ready: The versions that can serve.
    batching_lost: Why versions run requests one by one although the baseline's may share runs.
    """
    rollout, guard = live.rollout, live.config.guard
    sticky = rollout.sticky
    shares = rollout.shares(ready)
    variants = []
    for name, variant in rollout.variants.items():
        decision = live.decisions.get(variant.version) if variant.rolled_back else None
        evidence = live.evidence.candidates.get(name)
        variants.append(
            {
                "name": name,
                "version": str(variant.version),
                "weight": variant.weight,
                "share": round(shares[name], 6),
                "ready": variant.version in ready,
                "batching_lost": batching_lost.get(variant.version, ""),
                "rolled_back": variant.rolled_back,
                "reason": decision.reason if decision else "",
                "detail": decision.detail if decision else "",
                "at": decision.at if decision else "",
                "evidence": _describe_variant_evidence(evidence, guard) if evidence else {},
            }
        )
    return {
        "baseline": rollout.baseline,
        "sticky": _describe_sticky(sticky.header, sticky.parameter) if sticky else None,
        "variants": variants,
        "guard": {
            "max_error_rate_increase": guard.max_error_rate_increase,
            "max_latency_ratio": guard.max_latency_ratio,
            "max_disagreement": guard.max_disagreement,
            "min_requests": guard.min_requests,
            "confidence": guard.confidence,
            "slow_from_seconds": live.evidence.slow_from,
        },
        "shadow": _describe_shadow(live.shadow, live, batching_lost) if live.shadow else None,
    }


def _describe_sticky(header: str, parameter: str) -> dict[str, str]:
    return {"header": header} if header else {"parameter": parameter}


def _describe_variant_evidence(seen: VariantEvidence, guard: Guard) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if guard.max_error_rate_increase is not None:
        described["errors"] = {
            **_describe_evidence(seen.errors, guard, baseline=True),
            "failed_on_both": seen.failed_on_both,
        }
    if guard.max_latency_ratio is not None:
        described["latency"] = _describe_evidence(seen.slow, guard, baseline=True)
    return described


def _describe_evidence(stream: OutcomeStream, guard: Guard, *, baseline: bool) -> dict[str, Any]:
    evidence, variant = stream.evidence, stream.variant
    described: dict[str, Any] = {
        "requests": variant.total,
        "bad": variant.bad,
        "rate": round(variant.rate, 6),
        "log_e": round(evidence.log_e, 4),
        "threshold": round(threshold_of(evidence, guard), 4),
    }
    if baseline:
        described["baseline_requests"] = stream.baseline.total
        described["baseline_bad"] = stream.baseline.bad
        described["baseline_rate"] = round(stream.baseline.rate, 6)
    return described


def _describe_shadow(
    runner: ShadowRunner, live: LiveRollout, batching_lost: Mapping[int, str]
) -> dict[str, Any]:
    shadow, guard = runner.shadow, live.config.guard
    decision = live.decisions.get(shadow.version) if live.rollout.shadow_stopped else None
    described: dict[str, Any] = {
        "version": str(shadow.version),
        "sample": shadow.sample,
        "batching_lost": batching_lost.get(shadow.version, ""),
        "stopped": live.rollout.shadow_stopped,
        "reason": decision.reason if decision else "",
        "detail": decision.detail if decision else "",
        "compared": runner.compared,
        "disagreed": runner.disagreed,
        "failed": runner.failed,
        "dropped": runner.dropped,
        "outputs": {
            name: {
                "disagreements": one.disagreements,
                "max_abs_difference": _finite(one.largest),
                "max_relative_difference": _finite(one.relative),
            }
            for name, one in runner.outputs.items()
        },
    }
    if guard.max_disagreement is not None:
        described["evidence"] = _describe_evidence(runner.disagreement, guard, baseline=False)
    return described


def _finite(number: float) -> float | str:
    return number if isfinite(number) else "infinity"
