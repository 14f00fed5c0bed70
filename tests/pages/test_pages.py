"""The code on the pages works: every block is read, and those that can run here are run."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pytest

from tests.pages.blocks import ASKED, PAGES, ROOT, BadMark, Block, blocks_of
from tests.pages.checks import complaints
from tests.pages.printed import compare, pattern, shown_in
from tests.pages.terminal import BlockFailed, terminal

SAMPLE = {"docs/tutorial/first-model.md", "docs/reference/v2.md"}
"""Pages that run in every run of the tests; `make docs` runs every page."""


def read(page: Path) -> list[Block]:
    return list(blocks_of(page.read_text(encoding="utf-8")))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


TO_RUN = [
    page
    for page in PAGES
    if ASKED == "all" or name_of(page) in (ASKED.split() or SAMPLE)
    if any(block.runs for block in read(page))
]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_can_be_read(page: Path) -> None:
    """Each has a language, its syntax is right, and the server accepts its files."""
    assert not [said for block in read(page) for said in complaints(block)]


@pytest.mark.parametrize("page", TO_RUN, ids=name_of)
def test_blocks_work_from_the_first_to_the_last(page: Path, tmp_path: Path) -> None:
    """They run in a fresh working copy, against a real server, and print the page's output."""
    run_page(read(page), tmp_path)


def run_page(blocks: list[Block], folder: Path) -> None:
    """Run the blocks of a page under `folder`. Raises BlockFailed."""
    with terminal(folder) as session:
        for block, after in zip_longest(blocks, blocks[1:]):
            if block.file:
                session.save(block)
            elif block.serves:
                session.serve(block)
            elif block.runs:
                shown = [*shown_in(block), *([after.text] if after and after.printed else [])]
                compare(block, shown, session.run(block))


# --- The rules, shown to bite


@pytest.mark.parametrize(
    "page",
    [
        "```\nls\n```\n",
        "```fortran\nEND\n```\n",
        "```json\n{,}\n```\n",
        "```python\ndef\n```\n",
        "```sh\nif\n```\n",
        "```yaml\na: 1\n```\n",
        "<!-- file: models/mine/config.yaml -->\n```yaml\ntimeout: 1\n```\n",
        "<!-- file: rollouts.yaml -->\n```yaml\ndigits: {variants: {}}\n```\n",
        "<!-- not run: of Kubernetes -->\n```yaml\na: [\n```\n",
    ],
)
def test_a_block_that_cannot_be_right_is_told(page: str) -> None:
    """No language, an unknown one, wrong syntax, YAML of no file, and files the server refuses."""
    assert [said for block in blocks_of(page) for said in complaints(block)]


@pytest.mark.parametrize(
    "page",
    [
        "<!-- not run: -->\n```sh\nls\n```\n",
        "<!-- file: a.py -->\nText.\n\n```python\n1\n```\n",
        "<!-- printed -->\n",
        "<!-- not run: of Docker -->\n```sh\nls\n```\n<!-- printed -->\n```text\na\n```\n",
    ],
)
def test_a_mark_that_says_nothing_is_refused(page: str) -> None:
    """It has no reason, is before text or nothing, or is after a block that prints nothing here."""
    with pytest.raises(BadMark):
        list(blocks_of(page))


@pytest.mark.parametrize(
    "page",
    [
        "```sh\nfalse\ntrue\n```\n",
        "```sh\ncat no-such-file | wc\n```\n",
        "```sh\necho $undefined\n```\n",
        "```python\nraise SystemExit(3)\n```\n",
        "```sh\nmake lock\n```\n",
        "```sh\necho '{}'\n# {\"a\": 1}\n```\n",
        "```sh\necho 1\n```\n<!-- printed -->\n```text\n2\n```\n",
        '```sh\necho \'{"error":"no"}\'\n```\n',
        "```sh\nCOHORT_PORT=none cohort serve\n```\n",
    ],
)
def test_a_block_that_fails_is_told(page: str, tmp_path: Path) -> None:
    """A command, a program or a server that fails, and what is printed but not shown."""
    with pytest.raises(BlockFailed, match="line 1"):
        run_page(list(blocks_of(page)), tmp_path)


def test_a_page_is_one_session(tmp_path: Path) -> None:
    """Variables stay, files are at the named place, a comment's commands run, others do not."""
    page = """
<!-- run
made=$(mktemp -d)
-->
```sh
cd "$made" && export GREETING=hello
```

<!-- file: say.txt -->
```text
goodbye
```

- in a list

  ```python
  import os
  print({"said": os.environ["GREETING"], "took": 0.25})
  ```
  <!-- printed -->
  ```text
  {'said': 'hello', 'took': 1.5}
  ```

<!-- not run: would fail -->
```sh
false
```

```sh
ls "$made"; cat ~/cohort/say.txt
```
<!-- printed -->
```text
good…
```
"""
    run_page(list(blocks_of(page)), tmp_path)


def test_what_is_shown_matches_other_numbers_only() -> None:
    """Decimals differ from machine to machine; integers and words do not."""
    assert pattern('{"a": 0.5, "b": …}').search('x{"a":1.25e-7,"b":[1,2]}')
    assert pattern("0.5").search("1")
    assert not pattern('{"a": 5}').search('{"a":6}')
