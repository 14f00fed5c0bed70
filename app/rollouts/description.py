"""A rollout in plain values, for people."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from app.rollouts.evidence import VariantEvidence
from app.rollouts.live import LiveRollout
from app.rollouts.sequential_test import Evidence, Guard, threshold_of
from app.rollouts.shadow import Shadowing

Description = dict[str, Any]


def describe(live: LiveRollout, ready: Collection[int]) -> Description:
    """Variants with their real shares, what was decided and why, and the evidence so far."""
    rollout, guard = live.rollout, live.config.guard
    sticky = rollout.sticky
    shares = shares_of(live, ready)
    variants = []
    for name, variant in rollout.variants.items():
        decision = live.decisions.get(variant.version) if variant.rolled_back else None
        trial = live.trials.get(name)
        variants.append(
            {
                "name": name,
                "version": str(variant.version),
                "weight": variant.weight,
                "share": round(shares[name], 6),
                "ready": variant.version in ready,
                "rolled_back": variant.rolled_back,
                "reason": decision.reason if decision else "",
                "detail": decision.detail if decision else "",
                "at": decision.at if decision else "",
                "evidence": _trial(trial, guard) if trial and name != rollout.baseline else {},
            }
        )
    return {
        "baseline": rollout.baseline,
        "sticky": _sticky(sticky.header, sticky.parameter) if sticky else None,
        "variants": variants,
        "guard": {
            "max_error_rate_increase": guard.max_error_rate_increase,
            "max_latency_ratio": guard.max_latency_ratio,
            "max_disagreement": guard.max_disagreement,
            "min_requests": guard.min_requests,
            "confidence": guard.confidence,
            "slow_from_seconds": live.slow_from,
        },
        "shadow": _shadow(live.shadowing, live) if live.shadowing else None,
    }


def shares_of(live: LiveRollout, ready: Collection[int]) -> dict[str, float]:
    """The share of callers each variant has, with those the baseline takes over."""
    rollout = live.rollout
    total = sum(variant.weight for variant in rollout.variants.values())
    shares = dict.fromkeys(rollout.variants, 0.0)
    for name, variant in rollout.variants.items():
        gets = rollout.baseline if variant.rolled_back or variant.version not in ready else name
        shares[gets] += variant.weight / total
    return shares


def _sticky(header: str, parameter: str) -> dict[str, str]:
    return {"header": header} if header else {"parameter": parameter}


def _trial(trial: VariantEvidence, guard: Guard) -> Description:
    described: Description = {}
    if guard.max_error_rate_increase is not None:
        described["errors"] = {
            **_evidence(trial.errors.evidence, guard, baseline=True),
            "failed_on_both": trial.failed_on_both,
        }
    if guard.max_latency_ratio is not None:
        described["latency"] = _evidence(trial.slow.evidence, guard, baseline=True)
    return described


def _evidence(evidence: Evidence, guard: Guard, *, baseline: bool) -> Description:
    described: Description = {
        "requests": evidence.variant.total,
        "bad": evidence.variant.bad,
        "rate": round(evidence.variant.rate, 6),
        "log_e": round(evidence.log_e, 4),
        "threshold": round(threshold_of(evidence, guard), 4),
    }
    if baseline:
        described["baseline_requests"] = evidence.baseline.total
        described["baseline_bad"] = evidence.baseline.bad
        described["baseline_rate"] = round(evidence.baseline.rate, 6)
    return described


def _shadow(shadowing: Shadowing, live: LiveRollout) -> Description:
    shadow, guard = shadowing.shadow, live.config.guard
    decision = live.decisions.get(shadow.version) if live.rollout.shadow_stopped else None
    described: Description = {
        "version": str(shadow.version),
        "sample": shadow.sample,
        "stopped": live.rollout.shadow_stopped,
        "reason": decision.reason if decision else "",
        "detail": decision.detail if decision else "",
        "compared": shadowing.compared,
        "disagreed": shadowing.disagreed,
        "failed": shadowing.failed,
        "dropped": shadowing.dropped,
        "outputs": {
            name: {
                "disagreements": one.disagreements,
                "max_abs_difference": _finite(one.largest),
                "max_relative_difference": _finite(one.relative),
            }
            for name, one in shadowing.outputs.items()
        },
    }
    if guard.max_disagreement is not None:
        described["evidence"] = _evidence(shadowing.evidence, guard, baseline=False)
    return described


def _finite(number: float) -> float | str:
    return number if number < float("inf") else "infinity"
