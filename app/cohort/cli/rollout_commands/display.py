"""Format rollouts and the effects of edits for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from math import log
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohort.cli import options
from cohort.rollouts import Decision, Guard, Rollout, RolloutConfig
from cohort.rollouts.ramp import Ramp, RampProgress


def show_status(
    config: RolloutConfig,
    decisions: Mapping[int, Decision],
    progress: RampProgress,
    live: Mapping[str, Any] | None,
) -> None:
    """Print a table of the variants, then stickiness, shadow, guard and ramp.

    decisions: Rollbacks by version.
    progress: Progress of the ramp.
    live: The rollout as a server describes it, with its shares and evidence; None without a server.
    """
    console = _console()
    rollout = config.rollout.at_step(progress.step).with_decisions(decisions)
    table = Table("variant", "version", "weight", "share", "", header_style="bold")
    shares = rollout.shares()
    if live is not None:
        shares |= {one["name"]: one["share"] for one in live["variants"]}
    for name, variant in rollout.variants.items():
        note = Text("baseline" if name == rollout.baseline else "")
        if variant.rolled_back:
            note = Text(f"rolled back: {why(decisions[variant.version])}", "red")
        table.add_row(
            name, str(variant.version), f"{variant.weight:g}", percent(shares[name]), note
        )
    console.print(Text(rollout.model, "bold"))
    console.print(table)
    for line in [
        *_describe(rollout, config.guard, decisions),
        *_describe_ramp(rollout, progress),
        *(_live(live) if live is not None else ()),
    ]:
        console.print(Text(line), soft_wrap=True)


def _describe(rollout: Rollout, guard: Guard, decisions: Mapping[int, Decision]) -> Iterator[str]:
    sticky, shadow = rollout.sticky, rollout.shadow
    if sticky is None:
        yield "Sticky: no, each request is assigned at random"
    else:
        kind = f"header {sticky.header}" if sticky.header else f"parameter {sticky.parameter}"
        yield f"Sticky: by {kind}"
    if shadow is None:
        yield "Shadow: none"
    else:
        stopped = f", stopped: {why(decisions[shadow.version])}" if rollout.shadow_stopped else ""
        yield f"Shadow: version {shadow.version}, {percent(shadow.sample)} of requests{stopped}"
    limits = {
        "max_error_rate_increase": guard.max_error_rate_increase,
        "max_latency_ratio": guard.max_latency_ratio,
        "max_disagreement": guard.max_disagreement,
    }
    watched = [f"{name} {limit:g}" for name, limit in limits.items() if limit is not None]
    if watched:
        more = f"min_requests {guard.min_requests}, confidence {guard.confidence:g}"
        yield f"Guard: {', '.join(watched)}; {more}"
    else:
        yield "Guard: none, nothing is rolled back automatically"


def _describe_ramp(rollout: Rollout, progress: RampProgress) -> Iterator[str]:
    ramp = rollout.ramp
    if ramp is None:
        return
    after = "then all callers" if ramp.auto_promote else "then promote by hand"
    if rollout.variants[ramp.variant].rolled_back:
        now = "ended by the rollback"
    elif progress.step >= len(ramp.steps):
        now = "finished"
    else:
        now = (
            f"at step {progress.step + 1} of {len(ramp.steps)}, "
            f"{progress.soaked / 60:.0f} of {ramp.soak[progress.step] / 60:g} minutes"
        )
    yield f"Ramp: {ramp.variant}, {_steps(ramp)}, {after}; {now}"


def _steps(ramp: Ramp) -> str:
    return ", ".join(f"{step:g} %" for step in ramp.steps)


def _live(live: Mapping[str, Any]) -> Iterator[str]:
    """Describe the evidence of one server. Each server decides by its own evidence."""
    least = live["guard"]["min_requests"]
    for variant in live["variants"]:
        if not variant["ready"]:
            yield f"Live: version {variant['version']} ({variant['name']}) is not ready"
        if reason := variant["batching_lost"]:
            yield f"Live: {variant['name']} loses the batching that the baseline has: {reason}"
        for limit, evidence in variant["evidence"].items():
            against = f" against {evidence['baseline_rate']:.2%} of {evidence['baseline_requests']}"
            yield f"Live: {variant['name']}, {_describe_evidence(limit, evidence, against, least)}"
    shadow = live["shadow"]
    if shadow is not None:
        if reason := shadow["batching_lost"]:
            yield f"Live: shadow loses the batching that the baseline has: {reason}"
        yield (
            f"Live: shadow, {shadow['compared']} compared, {shadow['disagreed']} disagreed, "
            f"{shadow['failed']} failed, {shadow['dropped']} dropped"
        )
        if (evidence := shadow.get("evidence")) is not None:
            yield f"Live: shadow, {_describe_evidence('disagreement', evidence, '', least)}"


def _describe_evidence(limit: str, evidence: Mapping[str, Any], against: str, least: int) -> str:
    short = 0 if limit == "errors" else least - evidence["requests"]
    later = f", after {int(short)} more requests at the earliest" if short > 0 else ""
    return (
        f"{limit}: {evidence['rate']:.2%} of {evidence['requests']} requests{against}; "
        f"log10 of the evidence {evidence['log_e'] / log(10):.2f} "
        f"(rolled back at {evidence['threshold'] / log(10):.2f}{later})"
    )


def show_change(
    before: Rollout | None,
    after: Rollout,
    decisions: Mapping[int, Decision],
    *,
    step: int,
    ended: bool,
) -> None:
    """Print the changes of an edit as a diff, and the share of callers that move.

    before: The rollout before the edit; None if there was none.
    step: Step of its ramp.
    ended: True if the edit removes the rollout.
    """
    console = _console()
    console.print(Text(after.model, "bold"))
    old = dict(_lines(before)) if before is not None else {}
    new = {} if ended else dict(_lines(after))
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) == new.get(name):
            console.print(Text(f"  {name}: {old[name]}"))
            continue
        if name in old:
            console.print(Text(f"- {name}: {old[name]}", "red"))
        if name in new:
            console.print(Text(f"+ {name}: {new[name]}", "green"))
    same = before is not None and before.ramp_key == after.ramp_key
    was = before.at_step(step) if before is not None else None
    for line in _effects(was, after.at_step(step if same else 0), decisions):
        console.print(Text(line), soft_wrap=True)


def _lines(rollout: Rollout) -> Iterator[tuple[str, str]]:
    for (name, variant), share in zip(
        rollout.variants.items(), rollout.shares().values(), strict=True
    ):
        if rollout.ramp is not None and rollout.ramp.variant == name:
            yield name, f"version {variant.version}, ramp {_steps(rollout.ramp)}"
            continue
        yield name, f"version {variant.version}, weight {variant.weight:g} ({percent(share)})"
    yield "baseline", rollout.baseline
    if rollout.shadow is not None:
        yield "shadow", f"version {rollout.shadow.version}"


def _effects(
    before: Rollout | None, after: Rollout, decisions: Mapping[int, Decision]
) -> Iterator[str]:
    now = after.with_decisions(decisions)
    for name, variant in now.variants.items():
        if variant.rolled_back:
            yield (
                f"{name} stays rolled back ({why(decisions[variant.version])}): {now.baseline} "
                f"serves its callers until: cohort rollout clear {now.model} {name}"
            )
    if before is None:
        split = ", ".join(f"{percent(share)} {name}" for name, share in now.shares().items())
        yield f"Until now the highest version served all requests. New split: {split}."
        return
    was = before.with_decisions(decisions)
    if after.sticky is None:
        gets, got = now.shares(), was.shares()
        changed = [
            f"{name} from {percent(got.get(name, 0))} to {percent(gets.get(name, 0))}"
            for name in dict.fromkeys([*got, *gets])
            if abs(got.get(name, 0) - gets.get(name, 0)) > 1e-9
        ]
        if changed:
            yield f"Shares of requests, assigned at random: {', '.join(changed)}."
        return
    for (one, other), share in was.moves(now).items():
        yield f"About {percent(share)} of callers move from {one} to {other}."


def percent(share: float) -> str:
    """Format a share from 0 to 1, for example as "9.1 %"."""
    return "under 0.1 %" if 0 < share < 0.001 else f"{round(100 * share, 1):g} %"


def why(decision: Decision) -> str:
    """Describe why and when a version was rolled back."""
    since = f", since {decision.at}" if decision.at else ""
    return f"{decision.detail or decision.reason}{since}"


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else options.WIDTH, highlight=False)
