"""`cohort rollout`: edits of the operator's file, and reports on them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import rmtree
from socket import gethostname
from threading import Thread
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from cohort.cli import cli
from cohort.cli.rollout_commands.display import show_status
from cohort.cli.rollout_commands.live_evidence import progress_of
from cohort.cli.rollout_commands.yaml_edit import RolloutsFile
from cohort.errors import ConfigInvalid
from cohort.rollouts import Decision, DecisionStore, parse_rollouts
from cohort.rollouts.ramp import FIRST_STEP, RampProgress
from tests import onnx_models

FILE = """\
# who gets what
digits:
    variants:
        'stable': {version: 1, weight: 99}  # good old
        canary: {version: 2, weight: 1}

    # the first is the baseline anyway
    baseline: "stable"
    sticky: {header: "X-User"}
    shadow:
        version: 2
        sample: 0.50
    guard: {max_error_rate_increase: 0.010,
            min_requests: 300}

# flowers
iris: {variants: {a: {version: 1, weight: 0.50}, b: {version: 2, weight: 1}}, baseline: a}
"""


class Workspace:
    """An operator's rollouts file, models folder and state folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "rollouts.yaml"
        self.state = DecisionStore(folder / "state")
        self.folder = folder
        for model, version in [("digits", 1), ("digits", 2), ("iris", 1), ("iris", 2)]:
            (folder / "models" / model / str(version)).mkdir(parents=True)
        (folder / "state").mkdir()
        self.file.write_text(FILE)

    def run(self, *arguments: str, **variables: str) -> Result:
        return self.run_any("rollout", *arguments, **variables)

    def run_any(self, *arguments: str, **variables: str) -> Result:
        environment: dict[str, str | None] = {
            name: None for name in os.environ if name.startswith("COHORT_")
        }
        environment |= {
            "COHORT_MODELS": str(self.folder / "models"),
            "COHORT_STATE": str(self.folder / "state"),
            **variables,
        }
        return CliRunner().invoke(cli, arguments, env=environment, prog_name="cohort")

    def done(self, *arguments: str) -> str:
        """Return the output of a command that must succeed."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def refused(self, *arguments: str) -> str:
        """Return the output of a command that must fail and change nothing."""
        before = self.file.read_bytes()
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        assert self.file.read_bytes() == before
        return result.output

    def weights(self, model: str) -> dict[str, float]:
        """Return the weights in the file."""
        variants = RolloutsFile.read(self.file).configs[model].rollout.variants
        return {name: one.weight for name, one in variants.items()}

    @property
    def changed(self) -> list[tuple[str, str]]:
        """Pairs of lines that differ from FILE; both must have as many lines."""
        pairs = zip(FILE.splitlines(), self.file.read_text().splitlines(), strict=True)
        return [(old, new) for old, new in pairs if old != new]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """One with two rollouts."""
    return Workspace(tmp_path)


def test_set_changes_two_numbers_and_nothing_beside_them(workspace: Workspace) -> None:
    """Comments, order, quotes, indents and flow maps are the operator's."""
    workspace.done("set", "digits", "stable=90", "canary=10")
    assert workspace.changed == [
        (
            "        'stable': {version: 1, weight: 99}  # good old",
            "        'stable': {version: 1, weight: 90}  # good old",
        ),
        (
            "        canary: {version: 2, weight: 1}",
            "        canary: {version: 2, weight: 10}",
        ),
    ]


def test_set_says_what_changes_and_whom_it_moves(workspace: Workspace) -> None:
    """Sticky callers are simulated, others counted."""
    said = workspace.done("set", "digits", "stable=90", "canary=10")
    assert "- canary: version 2, weight 1 (1 %)" in said
    assert "+ canary: version 2, weight 10 (10 %)" in said
    (line,) = [line for line in said.splitlines() if line.startswith("About")]
    assert line.endswith("of callers move from stable to canary.")
    assert 7 < float(line.split()[1]) < 11
    said = workspace.done("set", "iris", "a=3")
    assert "assigned at random: a from 33.3 % to 75 %, b from 66.7 % to 25 %" in said


def test_a_new_variant_stands_after_the_others_as_they_are_written(workspace: Workspace) -> None:
    """It goes before the blank line and comments that follow, or into a flow map."""
    workspace.done("set", "digits", "third=2.5", "--version", "third=2")
    assert (
        "        canary: {version: 2, weight: 1}\n        third: {version: 2, weight: 2.5}\n\n"
    ) in workspace.file.read_text()
    workspace.done("set", "iris", "c=1", "--version", "c=2")
    assert (
        "b: {version: 2, weight: 1}, c: {version: 2, weight: 1}}, base"
        in workspace.file.read_text()
    )


def test_the_first_rollout_makes_the_file(workspace: Workspace) -> None:
    """A rollout of another model goes to the file's end, after its comments."""
    workspace.file.unlink()
    arguments = ["stable=99", "canary=1", "--version", "stable=1", "--version", "canary=2"]
    said = workspace.done("set", "digits", *arguments)
    assert "Until now the highest version served" in said
    assert workspace.file.read_text() == (
        "# yaml-language-server: $schema=models/.cohort/rollouts.schema.json\n"
        "digits:\n  variants:\n    stable: {version: 1, weight: 99}\n"
        "    canary: {version: 2, weight: 1}\n"
    )
    for begin in ("# only this", "---\n# only this\n", "{}\n"):
        workspace.file.write_text(begin)
        workspace.done("set", "iris", "a=1", "--version", "a=1")
        assert workspace.file.read_text().startswith(begin.rstrip("{}\n"))
        assert "iris" in RolloutsFile.read(workspace.file).configs


def test_promote_leaves_one_variant(workspace: Workspace) -> None:
    """All weight, the baseline, and no shadow that would agree with itself; the rest stays."""
    said = workspace.done("promote", "digits", "canary")
    assert "callers move from stable to canary" in said
    assert workspace.file.read_text() == (
        "# who gets what\n"
        "digits:\n"
        "    variants:\n"
        "        canary: {version: 2, weight: 100}\n"
        "\n"
        "    # the first is the baseline anyway\n"
        '    sticky: {header: "X-User"}\n'
        "    guard: {max_error_rate_increase: 0.010,\n"
        "            min_requests: 300}\n"
        "\n" + FILE[FILE.index("# flowers") :]
    )
    workspace.done("promote", "iris", "b")
    assert "iris: {variants: {b: {version: 2, weight: 100}}}" in workspace.file.read_text()


def test_a_variant_that_was_rolled_back_is_not_promoted(workspace: Workspace) -> None:
    """It can be promoted once the operator clears the rollback."""
    workspace.state.record("digits", Decision.now(2, "errors", "4 % of 900"))
    assert "rollout clear digits canary" in workspace.refused("promote", "digits", "canary")
    workspace.done("clear", "digits")
    workspace.done("promote", "digits", "canary")


def test_abort_gives_the_callers_to_the_baseline(workspace: Workspace) -> None:
    """The baseline's weight grows by the weights of the others."""
    assert "move from canary to stable" in workspace.done("abort", "digits")
    assert [new.strip() for _, new in workspace.changed] == [
        "'stable': {version: 1, weight: 100}  # good old",
        "canary: {version: 2, weight: 0}",
    ]
    assert "is the baseline" in workspace.refused("abort", "digits", "stable")


def test_shares_can_be_given_in_percent(workspace: Workspace) -> None:
    """Variants that are not named share the rest as before."""
    said = workspace.done("set", "digits", "canary=5%")
    assert "canary: version 2, weight 5 (5 %)" in said
    assert workspace.weights("digits") == {"stable": 95, "canary": 5}
    (workspace.folder / "models/digits/3").mkdir()
    workspace.done("set", "digits", "third=50%", "--version", "third=3")
    assert workspace.weights("digits") == {"stable": 47.5, "canary": 2.5, "third": 50}
    workspace.done("set", "digits", "canary=0%", "third=0%")
    workspace.done("set", "digits", "stable=0%", "canary=100%")
    workspace.done("set", "digits", "canary=12.5%")
    assert workspace.weights("digits") == {"stable": 87.5, "canary": 12.5, "third": 0}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["stable=90%", "canary=20%"], "must be 0 % to 100 % in all, got 110 %"),
        (["stable=20%", "canary=20%"], "must add up to 100 %, got 40 %"),
    ],
)
def test_shares_that_cannot_be_are_refused(
    workspace: Workspace, arguments: list[str], problem: str
) -> None:
    """The refusal contains the sum of the shares."""
    assert problem in workspace.refused("set", "digits", *arguments)


def test_first_shares_that_cannot_be_are_refused(workspace: Workspace) -> None:
    """The refusal reports the first mistake: the sum, or versions that are missing."""
    (workspace.folder / "models/roses/1").mkdir(parents=True)
    more = workspace.refused("set", "roses", "a=150%", "--version", "a=1")
    assert "must be 0 % to 100 % in all, got 150 %" in more
    assert "for example: cohort rollout set roses a=100%" in workspace.refused(
        "set", "roses", "a=100%"
    )


def test_a_model_that_only_the_file_knows_is_suggested(workspace: Workspace) -> None:
    """Its folder may be on another machine."""
    workspace.file.write_text(FILE + "tulips: {variants: {a: {version: 1, weight: 1}}}\n")
    assert "did you mean 'tulips'" in workspace.refused("set", "tulip", "a=1", "--version", "a=1")


def test_a_version_that_is_not_there_is_refused(workspace: Workspace) -> None:
    """The error lists available versions; a machine without the models skips the check."""
    said = " ".join(workspace.refused("set", "digits", "canary=1", "--version", "canary=7").split())
    assert "version 7 of canary not found in" in said
    assert "available: 1, 2" in said
    rmtree(workspace.folder / "models")
    workspace.done("set", "digits", "canary=1", "--version", "canary=7")


RAMPED = """\
digits:
  variants:
    stable: {version: 1, weight: 100}
    canary:
      version: 2
      ramp: [1%, 5%, 25%]  # and then we talk
      soak_minutes: 30
  guard: {max_error_rate_increase: 0.01}
"""


def test_a_ramp_is_shown_and_ends_by_promote_and_abort(workspace: Workspace) -> None:
    """Its share cannot be set next to it; clearing a rollback restarts it."""
    workspace.file.write_text(RAMPED)
    key = parse_rollouts(RAMPED, "rollouts.yaml")["digits"].rollout.ramp_key
    workspace.state.move_ramp("digits", key, RampProgress(1, 1, 720.0))
    said = workspace.done("status", "digits")
    assert "1 %, 5 %, 25 %, then promote by hand; at step 2 of 3, 12 of 30 minutes" in said
    assert "│ 95 %" in said
    refused = workspace.refused("set", "digits", "canary=9%")
    assert "the ramp of canary sets its share" in refused
    workspace.done("set", "digits", "stable=50")
    workspace.done("promote", "digits", "canary", "--dry-run")
    assert "canary is the baseline" not in workspace.done("abort", "digits", "canary")
    assert workspace.weights("digits") == {"stable": 50, "canary": 0}
    assert "ramp" not in workspace.file.read_text()
    workspace.file.write_text(RAMPED)
    workspace.done("promote", "digits", "canary")
    assert workspace.weights("digits") == {"canary": 100}
    workspace.state.record("digits", Decision.now(2, "errors", "4 % of 900"))
    workspace.file.write_text(RAMPED)
    assert "ended by the rollback" in workspace.done("status", "digits")
    workspace.done("clear", "digits", "canary")
    assert workspace.state.read().ramps["digits"][key] == RampProgress(2, 0, 0.0)


def test_clear_ends_rollbacks_in_the_state_folder_only(workspace: Workspace) -> None:
    """One variant's or all of a model's; the file is not touched."""
    for version in (2, 3):
        workspace.state.record("digits", Decision.now(version, "errors", "4 % of 900"))
    assert "Nothing to clear" in workspace.done("clear", "digits", "stable")
    decision = workspace.state.read().decisions["digits"][2]
    said = workspace.done("clear", "digits", "canary")
    assert "rollback of version 2 of digits (4 % of 900, since " in said
    ((digest, who),) = workspace.state.read({decision.digest}).cleared_by.items()
    assert digest == decision.digest
    assert re.fullmatch(rf".* on {re.escape(gethostname())}, 20\S+", who)
    assert set(workspace.state.read()[0]["digits"]) == {3}
    workspace.done("clear", "digits")
    assert workspace.state.read()[0] == {}
    assert workspace.file.read_text() == FILE


def test_status_shows_variants_and_what_was_decided(workspace: Workspace) -> None:
    """The file and the state folder suffice; no server is needed."""
    workspace.state.record("digits", Decision(2, "errors", "4 % of 900", "2026-05-01T10:00:00.000"))
    said = workspace.done("status", "digits")
    for words in (
        "rolled back: 4 % of 900, since 2026-05-01T10:00:00.000",
        "99     │ 100 %",
        "by header x-user",
        "version 2, 50 % of requests",
        "max_error_rate_increase 0.01; min_requests 300",
    ):
        assert words in said
    assert "iris" not in said
    assert "iris" in workspace.done("status")
    said = workspace.done("set", "digits", "canary=50")
    assert "canary stays rolled back" in said
    assert "move" not in said


def test_status_shows_evidence_with_the_limit_it_is_held_against(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both numbers are to base 10, as in metrics; few requests are compared with `min_requests`."""
    seen = {"rate": 0.04, "requests": 900, "log_e": -2.1, "threshold": 4.2}
    canary = {
        "name": "canary", "version": 2, "ready": True, "share": 0.01, "batching_lost": "",
    }  # fmt: skip
    few = {**seen, "requests": 120}
    evidence = {"errors": few | BASELINE, "latency": few | BASELINE}
    shadow = {
        "batching_lost": "Sum adds up",
        "compared": 300,
        "disagreed": 0,
        "failed": 0,
        "dropped": 0,
        "evidence": {**seen, "requests": 299},
    }
    live = {
        "variants": [{**canary, "evidence": evidence}],
        "shadow": shadow,
        "guard": {"min_requests": 300},
    }
    show_status(parse_rollouts(FILE, "rollouts.yaml")["digits"], {}, FIRST_STEP, live)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Live")]
    base10 = "log10 of the evidence -0.91 (rolled back at 1.82"
    said = f"4.00% of 120 requests against 1.00% of 5000; {base10}"
    assert lines == [
        f"Live: canary, errors: {said})",
        f"Live: canary, latency: {said}, after 180 more requests at the earliest)",
        "Live: shadow loses the batching that the baseline has: Sum adds up",
        "Live: shadow, 300 compared, 0 disagreed, 0 failed, 0 dropped",
        "Live: shadow, disagreement: 4.00% of 299 requests; "
        f"{base10}, after 1 more requests at the earliest)",
    ]


BASELINE = {"baseline_rate": 0.01, "baseline_requests": 5000}


def test_a_dry_run_writes_nothing(workspace: Workspace) -> None:
    """Commands with nothing to change do not write either."""
    for arguments in (
        ["set", "digits", "canary=50", "--dry-run"],
        ["promote", "digits", "canary", "--dry-run"],
        ["abort", "digits", "--dry-run"],
        ["set", "digits", "canary=1"],
    ):
        workspace.done(*arguments)
        assert workspace.file.read_text() == FILE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "digit", "a=1"], "model 'digit' not found in"),
        (
            ["set", "digits", "canry=1"],
            "did you mean 'canary'?; a new variant also needs --version",
        ),
        (["set", "digits", "canary=1", "--version", "canry=2"], "also needs canry=WEIGHT"),
        (["set", "digits", "canary=-1"], "digits.variants.canary.weight: must be from 0"),
        (["set", "digits", "canary=1", "--version", "canary=0"], "canary.version: must be from 1"),
        (["set", "digits", "canary=0", "stable=0"], "must not all have weight 0"),
        (["set", "digits", "a b=1", "--version", "a b=1"], "is not a valid variant name"),
        (
            ["set", "digits", "stable=1", "--version", "stable=2"],
            "shadow.version: must differ from the base",
        ),
        (
            ["promote", "digits", "cannary"],
            "variant 'cannary' of model 'digits' not found; did you mean",
        ),
        (["promote", "digit", "canary"], "model 'digit' has no rollout; did you mean 'digits'?"),
        (["abort", "digits", "cannary"], "variant 'cannary' of model 'digits' not found"),
        (["clear", "digits", "cannary"], "variant 'cannary' of model 'digits' not found"),
        (["status", "digit"], "model 'digit' has no rollout"),
        (["status", "--url", "http://127.0.0.1:9"], "cannot be reached"),
    ],
)
def test_what_cannot_be_is_refused_with_the_word_that_is_wrong(
    workspace: Workspace, arguments: list[str], said: str
) -> None:
    """The server's own checks run before anything is written."""
    assert said in workspace.refused(*arguments)


@pytest.mark.parametrize("argument", ["canary", "canary=", "=1", "canary=much", "canary=nan"])
def test_a_weight_that_is_none_is_misuse(workspace: Workspace, argument: str) -> None:
    """Click ends with exit code 2."""
    assert workspace.run("set", "digits", argument).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [["set", "digits", "a=1"], ["promote", "digits", "a"], ["abort", "digits"], ["status"]],
)
def test_a_broken_file_is_refused_whole(workspace: Workspace, arguments: list[str]) -> None:
    """The error names the key."""
    workspace.file.write_text("digits: {variants: {a: {version: 1, wieght: 1}}}\n")
    said = workspace.refused(*arguments)
    assert "digits.variants.a: unknown key 'wieght'" in said
    assert "nothing was changed" in said


def test_what_an_alias_shares_is_not_edited(workspace: Workspace) -> None:
    """An edit would change another model as well."""
    workspace.file.write_text(
        "digits: &one {variants: {a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}}\n"
        "iris: *one\n"
    )
    assert "edit the file by hand" in workspace.refused("set", "iris", "a=3")


def test_the_file_keeps_its_bits_its_link_and_its_line_ends(workspace: Workspace) -> None:
    """The new file is renamed to the path that the link points to."""
    real = workspace.folder / "real.yaml"
    real.write_bytes(FILE.replace("\n", "\r\n").encode())
    real.chmod(0o640)
    workspace.file.unlink()
    workspace.file.symlink_to(real)
    workspace.done("set", "digits", "canary=2", "new=1", "--version", "new=2")
    assert workspace.file.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    lines = real.read_bytes().split(b"\n")
    assert all(line.endswith(b"\r") for line in lines[:-1])
    assert not [one for one in workspace.folder.iterdir() if one.name.startswith(".")]


def test_an_edit_between_reading_and_writing_is_not_lost(workspace: Workspace) -> None:
    """The later of two operators gets an error."""
    file = RolloutsFile.read(workspace.file)
    workspace.done("set", "digits", "canary=2")
    with pytest.raises(ConfigInvalid, match="changed by another program"):
        file.write("{}")
    assert "weight: 2}" in workspace.file.read_text()


def test_a_rollout_ends_where_its_version_answers_without_one(workspace: Workspace) -> None:
    """The highest on disk; else callers would get another than was promoted."""
    from tests import onnx_models

    for version in (1, 2):
        path = workspace.folder / "models/iris" / str(version) / "model.onnx"
        onnx_models.save(onnx_models.mlp(), path)
    assert "version 2 of iris would serve" in workspace.refused("promote", "iris", "a", "--end")
    workspace.done("promote", "iris", "b", "--end")
    assert workspace.file.read_text() == FILE[: FILE.index("iris:")]


def test_a_version_that_is_not_on_disk_is_a_warning(workspace: Workspace) -> None:
    """If the file named the version before, it may still arrive."""
    workspace.file.write_text(FILE.replace("canary: {version: 2", "canary: {version: 7"))
    assert "Warning: version 7 not found in" in workspace.done("set", "digits", "canary=2")


def test_a_variant_that_takes_other_inputs_is_a_warning(workspace: Workspace) -> None:
    """The command that begins with it and `check` warn, unless the config allows it."""
    models = workspace.folder / "models"
    for version, model in enumerate([onnx_models.gather(), onnx_models.mlp()], 1):
        onnx_models.save(model, models / "digits" / str(version) / "model.onnx")
    said = "version 2 of variant canary does not accept what callers send: it needs input 'x'"
    assert said in workspace.done("set", "digits", "canary=2")
    checked = workspace.run_any("check", "--no-open")
    assert said in checked.output
    (models / "digits" / "config.yaml").write_text("allow_signature_change: true\n")
    assert said not in workspace.done("set", "digits", "canary=3")


@pytest.mark.parametrize("command", [("promote", "digits", "canary"), ("clear", "digits")])
def test_what_rests_on_decisions_stops_where_they_cannot_be_read(
    workspace: Workspace, command: tuple[str, ...]
) -> None:
    """Otherwise a rolled-back version could be promoted."""
    (workspace.folder / "state").rmdir()
    (workspace.folder / "state").symlink_to("state")  # a link that leads nowhere but to itself
    result = workspace.run(*command)
    assert result.exit_code == 1
    assert "cannot be read" in result.output
    assert workspace.file.read_text() == FILE


def test_an_odd_address_is_told_in_a_sentence(workspace: Workspace) -> None:
    """A port that is not a number is one such address."""
    result = workspace.run("status", "digits", "--url", "http://localhost:80x")
    assert result.exit_code == 1
    assert "http://localhost:80x cannot be reached" in result.output


@pytest.mark.parametrize("name", ["digits/", "digits/1", ".", ".."])
def test_a_path_is_no_model(workspace: Workspace, name: str) -> None:
    """A shell's completion can produce one."""
    result = workspace.run("set", name, "stable=1", "--version", "stable=1")
    assert result.exit_code == 1
    assert "not found in" in result.output
    assert workspace.file.read_text() == FILE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["canary=5%", "canary=6%"], "canary is given twice"),
        (["canary=5", "--version", "canary=2", "--version", "canary=1"], "canary is given twice"),
        (["canary=\u0663%"], "must be a finite number"),
        (["canary=1_0%"], "must be a finite number"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(
    workspace: Workspace, arguments: list[str], said: str
) -> None:
    """Two numbers for one variant are refused, and so are digits of other scripts."""
    result = workspace.run("set", "digits", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", "").split())
    assert workspace.file.read_text() == FILE


@pytest.mark.parametrize("more", [[], ["--version", "canary=2"]])
def test_a_first_rollout_by_shares_says_what_to_type(workspace: Workspace, more: list[str]) -> None:
    """The error has the full command, which then works."""
    (workspace.folder / "models/mine/1").mkdir(parents=True)
    (workspace.folder / "models/mine/2").mkdir()
    said = workspace.refused("set", "mine", "canary=5%", *more)
    typed = " ".join(said.split()).partition("cohort rollout ")[2]
    assert typed == "set mine stable=95% canary=5% --version stable=1 --version canary=2"
    workspace.done(*typed.split())
    assert workspace.weights("mine") == {"stable": 95, "canary": 5}


@pytest.mark.parametrize("command", [("promote", "digits", "canary"), ("clear", "digits")])
def test_without_a_state_folder_it_is_not_known_what_is_rolled_back(
    workspace: Workspace, command: tuple[str, ...]
) -> None:
    """So nothing is promoted, nothing is reported as clear, and status warns."""
    (workspace.folder / "state").rmdir()
    said = " ".join(workspace.refused(*command).split())
    assert "no state folder at" in said
    assert "Set COHORT_STATE or --state" in said
    assert "no state folder at" in " ".join(workspace.run("status").stderr.split())


class Stub(NamedTuple):
    """A server's address, the keys that it accepts (empty: all), and the keys that it received."""

    url: str
    takes: list[str]
    got: list[str | None]


@pytest.fixture
def server() -> Iterator[Stub]:
    """A server that has rolled back the canary of every model."""
    common = {"reason": "errors", "detail": "4 % of 900", "at": "2026", "evidence": {}}
    stable = {"name": "stable", "version": "1", "share": 1.0, "ready": True, "rolled_back": False}
    canary = {"name": "canary", "version": "2", "share": 0.0, "ready": True, "rolled_back": True}
    lost = {"batching_lost": "Sum 'y' adds up over all rows"}
    variants = [stable | common, canary | common | lost]
    guard = {"min_requests": 200}
    rollout = {"variants": variants, "shadow": None, "ramp": None, "guard": guard}
    body = json.dumps({"rollout": rollout}).encode()
    takes: list[str] = []
    got: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append(self.headers["authorization"])
            known = not takes or got[-1] in [f"Bearer {key}" for key in takes]
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield Stub(f"http://127.0.0.1:{serving.server_address[1]}", takes, got)
        serving.shutdown()


def test_a_server_is_believed_before_a_folder_of_this_machine(
    workspace: Workspace, server: Stub
) -> None:
    """Its shares are shown, its rollback prevents a promotion, and the difference is reported."""
    result = workspace.run("status", "digits", "--url", server.url)
    assert "is this the servers' folder?" in " ".join(result.stderr.split())
    said = result.output
    assert "rolled back: 4 % of 900" in said
    assert "Live: canary loses the batching that the baseline has: Sum 'y' adds up" in said
    assert "stable loses" not in said
    assert "99     │ 100 %" in said
    refused = workspace.refused("promote", "digits", "canary", "--url", server.url)
    assert "version 2 of digits is rolled back" in refused
    for output in (
        said,
        workspace.refused("clear", "digits", "--url", server.url),
        workspace.refused("promote", "digits", "stable", "--url", server.url),
    ):
        assert "is this the servers' folder? Set COHORT_STATE or --state" in " ".join(
            output.split()
        )
    workspace.state.record("digits", Decision.now(2, "errors", "4 % of 900"))
    assert "Warning" not in workspace.done("status", "digits", "--url", server.url)
    assert "Cleared" in workspace.done("clear", "digits", "--url", server.url)


@pytest.mark.parametrize(
    ("ramp", "progress"),
    [
        (None, (1, 0, 0.0)),
        ({"state": "soaking", "step": 2, "steps": [1, 5], "soaked_seconds": 7.0}, (1, 1, 7.0)),
        ({"state": "rolled back", "step": 1, "steps": [1, 5], "soaked_seconds": 0.0}, (1, 0, 0.0)),
        ({"state": "finished", "step": 2, "steps": [1, 5], "soaked_seconds": 0.0}, (1, 2, 0.0)),
        ({"state": "promoted", "step": 2, "steps": [1, 5], "soaked_seconds": 0.0}, (1, 2, 0.0)),
    ],
)
def test_how_far_a_ramp_is_is_read_from_a_server(
    ramp: dict[str, object] | None, progress: tuple[int, int, float]
) -> None:
    """Steps count from 0 here and from 1 there; a finished ramp is past its last step."""
    assert progress_of({"ramp": ramp}) == RampProgress(*progress)


def test_a_clear_that_cannot_be_written_is_told(workspace: Workspace) -> None:
    """The command does not report a clear."""
    (workspace.folder / "state/rollouts/digits/2.json").mkdir(parents=True)
    refused = workspace.refused("clear", "digits")
    assert "cannot be written" in refused
    assert "Cleared" not in refused


def test_a_rollout_of_a_model_that_is_not_on_disk_is_not_ended(workspace: Workspace) -> None:
    """It is not known which version would serve."""
    rmtree(workspace.folder / "models/digits")
    said = workspace.refused("promote", "digits", "stable", "--end")
    assert "digits cannot be read in" in said


@pytest.mark.parametrize(
    "command", [("status", "digits"), ("promote", "digits", "stable"), ("clear", "digits")]
)
def test_a_server_that_asks_for_keys_is_sent_one(
    workspace: Workspace, server: Stub, command: tuple[str, ...]
) -> None:
    """The key is from an option or the environment; an error without a key names the variable."""
    workspace.state.record("digits", Decision.now(2, "errors", "4 % of 900"))
    server.takes.append("a-key")
    asked = (*command, "--url", server.url)
    for refused in (workspace.run(*asked), workspace.run(*asked, COHORT_API_KEY="other")):
        assert refused.exit_code == 1
        assert "responded 401" in refused.output
        assert "COHORT_API_KEY" in refused.output
    done = workspace.run(*asked, COHORT_API_KEY="a-key")
    assert done.exit_code == 0, done.output
    assert "is not a setting" not in done.output
    workspace.file.write_text(FILE)
    workspace.state.record("digits", Decision.now(2, "errors", "again"))
    workspace.done(*asked, "--api-key", "a-key")
    assert server.got == [None, "Bearer other", "Bearer a-key", "Bearer a-key"]
