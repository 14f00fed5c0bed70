"""The page docs/reports/mutants.md: the mutants that were run, survived or are equivalent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.mutants.mutations import Mutation
from tools.mutants.outcomes import Record

LEAST = 0.9
"""The share of mutants run, without equivalent ones, that the tests must kill.

When the sample that `make mutants` runs was new, it had 40 mutants of each package. The tests
killed 170 of the 188 that were neither equivalent nor in an earlier sample: 90.4 %. Since then, new
tests kill the survivors, or the list declares them equivalent.
"""

HEAD = """\
# Mutants

Mutation testing makes faults in the code, one at a time, and runs the package's tests on each.
A mutant is killed if a test fails or does not end.
`make mutants` runs it and writes this page.
The folder [tools/mutants](../../tools/mutants) lists kinds of faults, and equivalent mutants.
No test could notice an equivalent mutant; these do not run or count.

**{run} of {made} mutants ran{sample}: the tests killed {killed}, and {survived} survived.
The score is {score}; {equivalent} mutants are equivalent, including those of other samples.**
{caution}
| module | mutants | equivalent | run | killed | survived | score |
|---|---:|---:|---:|---:|---:|---:|
"""


SAMPLE = ", a sample with the seed `{seed}`"

CAUTION = """
New tests kill the survivors, or the list declares them equivalent.
A sample that was used before therefore has a higher score; another seed draws a new one.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """A mutation, its record (None if it was not run), and why it is equivalent (None if not)."""

    mutation: Mutation
    record: Record | None
    equivalent: str | None

    @property
    def state(self) -> str:
        if self.equivalent is not None:
            return "equivalent"
        if self.record is None:
            return "not run"
        return "killed" if self.record.killed else "survived"


def score(states: Mapping[str, int]) -> float:
    """Return the share of those run that was killed; 1 if none was run."""
    judged = states["killed"] + states["survived"]
    return states["killed"] / judged if judged else 1.0


def page(results: Sequence[Result], *, seed: str | None) -> str:
    """Write the page in Markdown. `seed` is that of the sample; None if all were run."""
    modules: dict[str, Counter[str]] = {}
    for one in results:
        modules.setdefault(one.mutation.file, Counter())[one.state] += 1
    total = sum(modules.values(), Counter())
    head = HEAD.format(
        made=total.total(),
        run=total["killed"] + total["survived"],
        sample="" if seed is None else SAMPLE.format(seed=seed),
        killed=total["killed"],
        survived=total["survived"],
        score=f"{score(total):.1%}",
        equivalent=total["equivalent"],
        caution="" if seed is None else CAUTION,
    )
    rows = [_row(f"`{file}`", states) for file, states in sorted(modules.items())]
    parts = [head, *rows, _row("**all**", total)]
    parts += _listing("Survived", [one for one in results if one.state == "survived"])
    parts += _listing("Equivalent", [one for one in results if one.equivalent is not None])
    return "".join(parts)


def _row(name: str, states: Counter[str]) -> str:
    killed, survived = states["killed"], states["survived"]
    shown = f"{score(states):.0%}" if killed + survived else "-"
    numbers = [states.total(), states["equivalent"], killed + survived, killed, survived]
    return f"| {name} | {' | '.join(map(str, numbers))} | {shown} |\n"


def _listing(title: str, results: Sequence[Result]) -> list[str]:
    parts = [f"\n## {title}\n"] if results else []
    file = ""
    for one in results:
        if one.mutation.file != file:
            file = one.mutation.file
            parts.append(f"\n`{file}`\n\n")
        name = one.mutation.text.replace("`", "'")
        reason = f" - {one.equivalent}" if one.equivalent else ""
        parts.append(f"- {one.mutation.function}: `{name}`{reason}\n")
    return parts
