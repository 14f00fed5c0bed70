"""List the blocks that are not run, with the reason of each, and count all: `make docs`."""

from __future__ import annotations

from collections import Counter

from tests.pages.blocks import CHECKED, PAGES, ROOT, Block, blocks_of


def main() -> None:
    """Print the list and the counts."""
    counts: Counter[str] = Counter()
    for page in PAGES:
        for block in blocks_of(page.read_text(encoding="utf-8")):
            counts[fate(block)] += 1
            if block.not_run:
                print(f"{page.relative_to(ROOT)}:{block.line}: not run: {block.not_run}")
    print("cohort: blocks of code:", ", ".join(f"{n} {how}" for how, n in sorted(counts.items())))


def fate(block: Block) -> str:
    """Return what the tests do with a block."""
    if block.not_run:
        return "not run"
    if block.runs:
        return "run"
    return "checked" if block.language in CHECKED or block.printed else "shown"


if __name__ == "__main__":
    main()
