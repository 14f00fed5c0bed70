"""Rollouts and what an edit does to them, as lines for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli import options
from app.cli.rollout_commands.moving import moves, shares, with_decisions
from app.rollouts import Decision, Rollout, RolloutConfig


def show_status(
    config: RolloutConfig, decisions: Mapping[int, Decision], live: Mapping[str, Any] | None
) -> None:
    """A table of the variants, and what is around them; `live` is a server's description."""
    console = _console()
    rollout = with_decisions(config.rollout, decisions)
    table = Table("variant", "version", "weight", "share", "", header_style="bold")
    for (name, variant), share in zip(
        rollout.variants.items(), shares(rollout).values(), strict=True
    ):
        note = Text("baseline" if name == rollout.baseline else "")
        if variant.rolled_back:
            note = Text(f"rolled back: {why(decisions[variant.version])}", "red")
        table.add_row(name, str(variant.version), f"{variant.weight:g}", percent(share), note)
    console.print(Text(rollout.model, "bold"))
    console.print(table)
    for line in [*_around(config, decisions), *(_live(live) if live is not None else ())]:
        console.print(Text(line), soft_wrap=True)


def _around(config: RolloutConfig, decisions: Mapping[int, Decision]) -> Iterator[str]:
    sticky, shadow, guard = config.rollout.sticky, config.rollout.shadow, config.guard
    if sticky is None:
        yield "Sticky: no, each request draws anew"
    else:
        kind = f"header {sticky.header}" if sticky.header else f"parameter {sticky.parameter}"
        yield f"Sticky: by {kind}"
    if shadow is None:
        yield "Shadow: none"
    else:
        stopped = decisions.get(shadow.version)
        said = f", stopped: {why(stopped)}" if stopped and stopped.reason == "disagreement" else ""
        yield f"Shadow: version {shadow.version}, {percent(shadow.sample)} of answers{said}"
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
        yield "Guard: none, nothing is rolled back by itself"


def _live(live: Mapping[str, Any]) -> Iterator[str]:
    """What this one server has seen; others judge by their own."""
    for variant in live["variants"]:
        if not variant["ready"]:
            yield f"Live: version {variant['version']} ({variant['name']}) is not ready"
        for limit, seen in variant["evidence"].items():
            against = f" against {seen['baseline_rate']:.2%} of {seen['baseline_requests']}"
            yield f"Live: {variant['name']}, {_seen(limit, seen, against)}"
    shadow = live["shadow"]
    if shadow is not None:
        yield (
            f"Live: shadow, {shadow['compared']} compared, {shadow['disagreed']} disagreed, "
            f"{shadow['failed']} failed, {shadow['dropped']} dropped"
        )
        if (seen := shadow.get("evidence")) is not None:
            yield f"Live: shadow, {_seen('disagreement', seen, '')}"


def _seen(limit: str, seen: Mapping[str, Any], against: str) -> str:
    return (
        f"{limit}: {seen['rate']:.2%} of {seen['requests']} requests{against}; "
        f"evidence {seen['log_e']:.1f}, rolled back from {seen['threshold']:.1f}"
    )


def show_change(
    before: Rollout | None,
    after: Rollout,
    decisions: Mapping[int, Decision],
    *,
    ended: bool = False,
) -> None:
    """What an edit changes, as a diff, and whom it moves."""
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
    for line in _effects(before, after, decisions):
        console.print(Text(line), soft_wrap=True)


def _lines(rollout: Rollout) -> Iterator[tuple[str, str]]:
    for (name, variant), share in zip(
        rollout.variants.items(), shares(rollout).values(), strict=True
    ):
        yield name, f"version {variant.version}, weight {variant.weight:g} ({percent(share)})"
    yield "baseline", rollout.baseline
    if rollout.shadow is not None:
        yield "shadow", f"version {rollout.shadow.version}"


def _effects(
    before: Rollout | None, after: Rollout, decisions: Mapping[int, Decision]
) -> Iterator[str]:
    now = with_decisions(after, decisions)
    for name, variant in now.variants.items():
        if variant.rolled_back:
            yield (
                f"{name} stays rolled back ({why(decisions[variant.version])}): its callers get "
                f"{now.baseline} until: cohort rollout clear {now.model} {name}"
            )
    if before is None:
        split = ", ".join(f"{percent(share)} {name}" for name, share in shares(now).items())
        yield f"The model had no rollout: its highest version answered. Now {split}."
        return
    was = with_decisions(before, decisions)
    if after.sticky is None:
        gets, got = shares(now), shares(was)
        changed = [
            f"{name} from {percent(got.get(name, 0))} to {percent(gets.get(name, 0))}"
            for name in dict.fromkeys([*got, *gets])
            if abs(got.get(name, 0) - gets.get(name, 0)) > 1e-9
        ]
        if changed:
            yield f"Of all requests, each of which draws anew: {', '.join(changed)}."
        return
    for (one, other), share in moves(was, now).items():
        yield f"About {percent(share)} of callers move from {one} to {other}."


def percent(share: float) -> str:
    """A share for people: 9.1 %."""
    return "under 0.1 %" if 0 < share < 0.001 else f"{round(100 * share, 1):g} %"


def why(decision: Decision) -> str:
    """What was decided, and when."""
    since = f", since {decision.at}" if decision.at else ""
    return f"{decision.detail or decision.reason}{since}"


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else options.WIDTH, highlight=False)
