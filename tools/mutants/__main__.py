"""Make mutants, run the tests against each, and report which survived: `make mutants`."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tools import ROOT
from tools.mutants.mutations import Mutation, mutated, mutations
from tools.mutants.outcomes import (
    Record,
    Records,
    digest,
    digest_of_tests,
    read_equivalent,
    unknown,
)
from tools.mutants.packages import PACKAGES, modules
from tools.mutants.report import LEAST, Result, page, score
from tools.mutants.running import Baseline, Tree, context

KEPT = ROOT / "build" / "mutants"
PAGE = ROOT / "docs" / "reports" / "mutants.md"

console = Console(stderr=True)


def main() -> int:
    """Run the chosen mutants; return 1 if too many survive."""
    asked = arguments().parse_args()
    packages = {name: made_in(name) for name in asked.packages or PACKAGES}
    everything = [mutation for made in packages.values() for mutation in made]
    equivalent = read_equivalent()
    gone = unknown(equivalent, everything) if not asked.packages else []
    records = Records(KEPT / "outcomes.jsonl")
    chosen = choose(everything, asked)
    if not asked.no_run:
        for package, made in packages.items():
            wanted = [one for one in made if one in chosen]
            wanted = [one for one in wanted if one.name not in equivalent.get(one.file, {})]
            run(package, wanted, records, workers=asked.workers)
    results = [
        Result(
            mutation,
            records.get(mutation, tests) if mutation in chosen else None,
            equivalent.get(mutation.file, {}).get(mutation.name),
        )
        for package, made in packages.items()
        for tests in [digest_of_tests(package)]
        for mutation in made
    ]
    seed = None if asked.sample is None else asked.seed
    text = page(results, seed=seed)
    if asked.write:
        PAGE.write_text(text)
    console.print(text, markup=False, highlight=False)
    for name in gone:
        console.print(f"mutants: equivalent, and cannot be made: {name}", markup=False)
    states = [result.state for result in results]
    reached = score({state: states.count(state) for state in ("killed", "survived")})
    return 1 if gone or reached < LEAST else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(PACKAGES))
    parser.add_argument("--sample", type=int, metavar="N", help="run N mutants of each package")
    parser.add_argument("--seed", default="cohort", help="which ones; a larger sample holds these")
    parser.add_argument("--changed", metavar="REV", help="only those of lines changed since REV")
    parser.add_argument("--only", metavar="REGEX", help="only those whose id has a match")
    parser.add_argument("--workers", type=int, default=1, help="processes at once (default 1)")
    parser.add_argument("--no-run", action="store_true", help="only report what is known")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    return parser


def made_in(package: str) -> list[Mutation]:
    """List the mutations of a package."""
    sources = modules(package).items()
    return [mutation for file, source in sources for mutation in mutations(file, source)]


def choose(made: Sequence[Mutation], asked: argparse.Namespace) -> set[Mutation]:
    """Choose what to run: by changed lines and name, then the sample of each package."""
    chosen = [one for one in made if asked.only is None or re.search(asked.only, one.id)]
    if asked.changed is not None:
        lines = changed_lines(asked.changed)
        chosen = [one for one in chosen if lines.get(one.file, set()) & {*one.lines}]
    if asked.sample is None:
        return set(chosen)
    sample: set[Mutation] = set()
    for package in PACKAGES:
        its = [one for one in chosen if one.file.startswith(package)]
        sample.update(sorted(its, key=lambda one: digest(asked.seed, one.id))[: asked.sample])
    return sample


def changed_lines(revision: str) -> dict[str, set[int]]:
    """Return the lines of each file that changed since `revision`."""
    command = ["git", "diff", "--unified=0", "--no-color", revision, "--", "app"]
    diff = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found: dict[str, set[int]] = {}
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            found.setdefault(file, set()).update(range(first, first + count))
    return found


def run(package: str, wanted: Sequence[Mutation], records: Records, *, workers: int) -> None:
    """Run the tests of `package` against each mutation that is not known yet."""
    tests = digest_of_tests(package)
    left = [one for one in wanted if records.get(one, tests) is None]
    if not left:
        return
    sources = modules(package)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, progress() as bars:
        trees = [Tree(ROOT, Path(folder).resolve() / str(n), context()) for n in range(workers)]
        bar = bars.add_task(f"{package}: unchanged", total=None)
        baseline = trees[0].measure(PACKAGES[package])
        bars.update(bar, description=package, total=len(left))
        free: SimpleQueue[Tree] = SimpleQueue()
        for tree in trees:
            free.put(tree)

        def judge(mutation: Mutation) -> Record:
            tree = free.get()
            begun = time.monotonic()
            try:
                outcome = try_out(tree, baseline, mutation, sources[mutation.file])
            finally:
                free.put(tree)
            seconds = round(time.monotonic() - begun, 1)
            return Record(mutation.id, outcome, digest(mutation.scope), tests, seconds)

        with ThreadPoolExecutor(workers) as threads:
            for record in threads.map(judge, left):
                records.add(record)
                bars.advance(bar)
                if not record.killed:
                    line = f"{record.outcome}: {record.id}"
                    bars.console.print(line, markup=False, highlight=False)


def try_out(tree: Tree, baseline: Baseline, mutation: Mutation, source: str) -> str:
    """Return the outcome of one mutation."""
    tests = baseline.tests(mutation.file, mutation.lines, runs=mutation.runs)
    if not tests:
        return "not reached"
    source = mutated(mutation, source)
    return tree.run(mutation.file, source, baseline.in_order(tests), baseline.timeout(tests))


def progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeRemainingColumn(), console=console)


if __name__ == "__main__":
    sys.exit(main())
