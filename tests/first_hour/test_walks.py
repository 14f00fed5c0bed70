"""Four users' first hour, typed as they would: each page next to this file is one walk."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, write_quick_command
from tests.first_hour.walks import TRACEBACK, Done, Step, complaint, read_steps, shell, walk
from tests.waiting import wait_until

PAGES = sorted(Path(__file__).parent.glob("*.md"))
LONG = os.environ.get("FIRST_HOUR") == "all"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_walk(page: Path, tmp_path: Path) -> None:
    """Each typed command does what the page shows.

    `make first-hour` installs into temporary environments, and keeps commands and output in
    build/first-hour. Without it `cohort` and `python` are this environment's, `cohort` is forked
    except for a tutorial author, and long blocks are left out.
    """
    if LONG:
        folder = ROOT / "build/first-hour" / page.stem
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with (
            (folder / "transcript.txt").open("w", encoding="utf-8") as transcript,
            shell(folder) as started,
        ):
            walk(page, started, long=True, say=partial(print, file=transcript, flush=True))
        for environment in folder.glob("*/"):  # several GB
            shutil.rmtree(environment)
    else:
        settings = {
            "PYTHONPATH": str(tmp_path / "cohort"),
            "COHORT_WATCH_SECONDS": "0.3",
            "COHORT_DRAIN_NOTICE_SECONDS": "0",
            "COHORT_INSPECTION_SECONDS": "0",
        }
        if page.stem != "tutorial_author":  # that page has the real command
            (tmp_path / "bin").mkdir()
            write_quick_command(tmp_path / "bin")
        with shell(tmp_path, path=[Path(sys.executable).parent], **settings) as started:
            walk(page, started, long=False, say=print)


PAGE = """
Prose, and a block that is not typed:

```sh
$ rm -r everything
```

```console
$ cat <<'END'
> one
>
> END
one
$ exit 7
[7]
```

```console long
$ sleep 600
```
"""


def test_steps_are_read() -> None:
    """Steps have continued lines, expected lines and exit statuses; long blocks are optional."""
    short = [Step("cat <<'END'\none\n\nEND", ("one",)), Step("exit 7", status=7)]
    assert read_steps(PAGE, long=False) == short
    assert read_steps(PAGE, long=True) == [*short, Step("sleep 600")]


@pytest.mark.parametrize(
    ("seen", "printed"),
    [
        ((), ""),
        (("two",), "one\ntwo\nthree"),
        (("one", "three"), "one\ntwo\nthree"),
        (('{"label":[…],"ms":…}',), 'x {"label":[0],"ms":0.3}'),
        ((TRACEBACK,), TRACEBACK),
    ],
)
def test_what_is_to_be_seen_is_seen(seen: tuple[str, ...], printed: str) -> None:
    """They may be anywhere in a line, in order, with any text between them."""
    assert not complaint(Step("ask", seen), Done(printed, 0, 0.1))


@pytest.mark.parametrize(
    ("seen", "printed", "status"),
    [
        (("two",), "one", 0),
        (("three", "one"), "one\ntwo\nthree", 0),
        (("one", "one"), "one", 0),
        (("a.c",), "abc", 0),
        (("[…]",), "[1", 0),
        ((), "", 1),
        ((), f"{TRACEBACK}:\nKeyError", 0),
    ],
)
def test_what_is_not_as_the_page_says_is_caught(
    seen: tuple[str, ...], printed: str, status: int
) -> None:
    """A line that is missing or out of order, another exit status, or a traceback."""
    assert complaint(Step("ask", seen), Done(printed, status, 0.1))


def test_a_shell_keeps_what_was_set_and_ends_what_was_started(tmp_path: Path) -> None:
    """Variables and the folder stay; programs read no steps; ports are mapped, and back again."""
    with shell(tmp_path) as started:
        assert started.type("cd models; NAME=iris").status == 0
        assert started.type('cat; echo "$NAME"; ls -d iris').printed == "iris\niris\n"
        assert started.type("false").status == 1
        assert started.type("echo localhost:8000").printed == "localhost:8000\n"
        assert started.type("echo 'localhost:8000' | grep -c :8000").status == 1
        pid = int(started.type("sleep 600 & echo $!").printed)
    command = Path(f"/proc/{pid}/cmdline")  # empty once it has ended, until it was waited for
    wait_until(lambda: not command.exists() or not command.read_bytes())
