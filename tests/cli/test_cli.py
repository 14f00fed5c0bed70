"""The commands."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result

from cohort.cli import cli
from cohort.cli.options import OK
from cohort.cli.profile_command import BAR_WIDTH
from cohort.settings import Settings, variable
from tests import onnx_models
from tests.bundled import MODELS
from tests.e2e.mixing_models import BROUGHT
from tests.e2e.processes import quick_command, run_command
from tests.e2e.rounding_models import ROUNDINGS


def run(*arguments: str, **environment: str) -> Result:
    clean = {name: None for name in os.environ if name.startswith("COHORT_")}
    return CliRunner().invoke(cli, arguments, env={**clean, **environment}, prog_name="cohort")


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the same in a separate process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**clean, **environment},
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The calls of `cohort.process.serve`, which is replaced so that no server starts."""
    calls: list[Settings] = []
    stand_in = ModuleType("cohort.process")
    stand_in.__path__ = import_module("cohort.process").__path__  # its modules are the real ones
    stand_in.serve = lambda settings, _: calls.append(settings)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cohort.process", stand_in)
    return calls


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository in good order."""
    folder = tmp_path / "models"
    onnx_models.save(onnx_models.mlp(), folder / "mlp" / "1" / "model.onnx")
    (folder / "mlp" / "config.yaml").write_text("providers: [cpu]")
    return folder


def test_help_shows_the_commands_and_how_to_begin() -> None:
    """The first page has an example to copy."""
    shown = run("--help")
    assert shown.exit_code == 0
    for word in ("serve", "check", "models/iris/1/model.onnx", "curl"):
        assert word in shown.output


def test_help_of_serve_shows_every_setting() -> None:
    """Each option with its variable and what it is by default."""
    shown = run("serve", "--help", COLUMNS="200")
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in shown.output
        assert variable(name) in shown.output
    for default in ("8000", "127.0.0.1", "rollouts.yaml next to", "admin routes answer 403"):
        assert default in shown.output


def test_help_imports_nothing_heavy() -> None:
    """Help is fast, since it imports neither the runtime, the web framework nor numpy."""
    shown = start("-X", "importtime", "-m", "cohort", "--help")
    assert shown.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "rich_click" in imported
    assert not imported & {
        "onnxruntime",
        "fastapi",
        "numpy",
        "uvicorn",
        "pydantic",
        "cohort.settings",
    }


def test_serving_imports_nothing_that_prepares_models() -> None:
    """Its packages are another's, and a server's environment may lack what they need."""
    shown = start("-X", "importtime", "-m", "cohort", "serve", "--help")
    assert shown.returncode == 0
    assert "cohort_prepare" not in shown.stderr


def test_version_is_shown() -> None:
    """Reports of problems need it."""
    shown = run("--version")
    assert shown.exit_code == 0
    assert shown.output.startswith("cohort")


def test_serve_takes_options_over_the_environment(served: list[Settings]) -> None:
    """Options override the environment, and the environment overrides the defaults."""
    done = run("serve", "--port", "9001", COHORT_PORT="9000", COHORT_HOST="::1", COHORT_MODELS="")
    assert done.exit_code == 0, done.output
    assert (served[0].port, served[0].host, served[0].grpc_port) == (9001, "::1", 8001)
    assert served[0].models == Path("models")


def test_serve_refuses_wrong_settings(served: list[Settings]) -> None:
    """Every one of them, by the name it was given under, before anything starts."""
    done = run("serve", "--drain-seconds", "soon", COHORT_PORT="http")
    assert done.exit_code == 2
    assert served == []
    assert "COHORT_PORT: must be a whole number, got 'http'" in done.output
    assert "--drain-seconds (COHORT_DRAIN_SECONDS): must be a whole number" in done.output


def test_the_folder_may_stand_by_itself(served: list[Settings], models: Path) -> None:
    """`serve` and `check` accept the folder as an argument, but not twice."""
    assert run("serve", "/srv/models", COHORT_MODELS="elsewhere").exit_code == 0
    assert served[0].models == Path("/srv/models")
    assert run("check", str(models), "--no-open").exit_code == 0
    twice = run("check", str(models), "--models", "elsewhere")
    assert twice.exit_code == 2
    assert "FOLDER and --models are the same setting" in twice.output


def test_misspelt_variable_is_a_warning(models: Path) -> None:
    """It may belong to another program, so it is only a warning."""
    done = run("check", "--models", str(models), "--no-open", COHORT_PROT="1")
    assert done.exit_code == 0
    assert "did you mean 'COHORT_PORT'?" in done.stderr


def test_a_kubernetes_service_named_cohort_stops_no_command(
    models: Path, served: list[Settings]
) -> None:
    """Its COHORT_PORT is an address; the default is used, with one warning."""
    address = "tcp://10.96.12.7:8000"
    for command in (["check", "--models", str(models), "--no-open"], ["serve"]):
        done = run(*command, COHORT_PORT=address, COHORT_SERVICE_PORT="8000")
        assert done.exit_code == 0, done.output
        assert done.stderr.count("Warning: ") == 1
        assert (
            f"COHORT_PORT is ignored: Kubernetes sets '{address}' for a Service named cohort"
            in done.stderr
        )
    assert served[0].port == 8000


def test_check_of_good_models_shows_them(models: Path) -> None:
    """What each takes, gives and runs on."""
    done = run("check", COHORT_MODELS=str(models))
    assert done.exit_code == 0
    for word in ("mlp", "x FP32 [N, 4]", "y FP32 [N, 3]", "cpu", "1 model, 1 version"):
        assert word in done.output


def test_check_names_state_that_does_not_fit(models: Path) -> None:
    """It names a missing input, and a cache next to the state, as a server would."""
    for name, config in (("a", "state: {q: y}"), ("b", "state: {x: y}\ncache: {max_mb: 1}")):
        onnx_models.save(onnx_models.identity(), models / name / "1/model.onnx")
        (models / name / "config.yaml").write_text(config + "\n")
    result = run("check", str(models))
    assert result.exit_code == 1
    assert "a/config.yaml: state.q: the model has no such input" in result.output
    assert "b/config.yaml: cache: answers of a model with state" in result.output


TRANSFORM = """
class Halves:
    inputs = {"text": ("BYTES", ["N"])}

    def before(self, request):
        return {}

    def after(self, outputs):
        return {"first": outputs["y"][:, :2]}


class Broken:
    def __init__(self):
        raise RuntimeError("no weights")


class Wrong:
    def after(self, outputs):
        return outputs["z"]
"""


def transformed(models: Path, name: str) -> Path:
    """A model whose config names a class of TRANSFORM."""
    folder = models / name.lower()
    onnx_models.save(onnx_models.mlp(), folder / "1/model.onnx")
    (folder / "halves.py").write_text(TRANSFORM)
    (folder / "config.yaml").write_text(f"transform: halves:{name}\n")
    return folder


def test_check_loads_transforms_where_that_is_allowed(models: Path) -> None:
    """It shows the inputs and outputs of callers, and each failure with its config."""
    transformed(models, "Halves")
    done = run("check", str(models), "--model-code", "allow")
    assert done.exit_code == 0, done.output
    assert "text BYTES [N]" in done.output
    assert "first FP32 [?, ?]" in done.output
    for name in ("Broken", "Wrong", "Absent"):
        transformed(models, name)
    done = run("check", str(models), COHORT_MODEL_CODE="allow")
    assert done.exit_code == 1
    assert "broken/config.yaml: transform cannot be loaded: RuntimeError" in done.output
    assert "wrong/config.yaml: transform: after fails for outputs that are zeros" in done.output
    assert "absent/config.yaml: transform cannot be loaded: AttributeError" in done.output


def test_check_says_that_a_transform_was_not_loaded(models: Path) -> None:
    """Its module has not run, and the command succeeds."""
    folder = transformed(models, "Halves")
    touched = models.parent / "touched"
    (folder / "halves.py").write_text(f"open({str(touched)!r}, 'w')")
    done = run("check", str(models))
    assert done.exit_code == 0
    assert "halves/1: transform not loaded: set COHORT_MODEL_CODE=allow" in done.output
    assert not touched.exists()


def test_check_tells_why_a_provider_is_not_active(models: Path) -> None:
    """A fallback is not a problem under `prefer`, but it is reported."""
    (models / "mlp" / "config.yaml").write_text("providers: [coreml, cpu]")
    done = run("check", "--models", str(models))
    assert done.exit_code == 0
    assert "coreml" in done.output


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """The lines that the command shows on a terminal so wide."""
    terminal, shown_on = pty.openpty()
    process = subprocess.Popen(
        [*quick_command(), *arguments],
        stdout=shown_on, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
        env={**os.environ, "COLUMNS": str(columns), "TERM": "dumb"},
    )  # fmt: skip
    os.close(shown_on)
    shown = b""
    with suppress(OSError):  # Linux reports a terminal without writers so
        while more := os.read(terminal, 1 << 16):
            shown += more
    os.close(terminal)
    assert process.wait() == OK
    return [line.rstrip() for line in shown.decode().splitlines()]


def test_check_keeps_its_columns_on_a_narrow_terminal(models: Path) -> None:
    """Reasons are footnotes, each once; a column is as wide as what it must show on one line."""
    onnx_models.save(onnx_models.mlp(), models / "a-name-of-some-length" / "1" / "model.onnx")
    for name in ("mlp", "a-name-of-some-length"):
        (models / name / "config.yaml").write_text("providers: [tensorrt, coreml, cpu]")
    lines = on_a_terminal(80, "check", "--models", str(models))
    head = next(line for line in lines if line.startswith("model "))
    table = lines[lines.index(head) : lines.index(next(x for x in lines if x.startswith("(1)")))]
    assert max(map(len, table)) <= 80
    assert [line[head.index("provider") :] for line in table if " 1 " in line] == ["cpu (1)"] * 2
    text = " ".join(lines)
    assert text.count("instead of tensorrt: ") == 1
    assert text.count("no CoreMLExecutionProvider") == 1


def test_check_into_a_pipe_is_a_line_for_each_version(tmp_path: Path) -> None:
    """A line is not cut or folded, whatever the name, so that grep finds it."""
    name = "m" * 120
    onnx_models.save(onnx_models.mlp(), tmp_path / name / "1" / "model.onnx")
    shown = run("check", "--models", str(tmp_path)).stdout
    (row,) = [line for line in shown.splitlines() if name in line]
    assert row.split() == [name, "1", "x", "FP32", "[N,", "4]", "y", "FP32", "[N,", "3]", "cpu"]


def test_check_finds_every_problem(models: Path) -> None:
    """It finds problems of the folder, configs and models, each on a line with its file and key."""
    (models / "mlp" / "config.yaml").write_text("timeout: 3\nbatching: {max_batch_size: x}")
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    (models / "broken" / "02").mkdir()
    done = run("check", "--models", str(models), COHORT_DEFAULT_MODEL="mpl")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    for begin in (
        "mlp/config.yaml: unknown key 'timeout'",
        "mlp/config.yaml: batching.max_batch_size: must be a whole number",
        "broken/02: ",
        "broken/1/model.onnx: ",
        "COHORT_DEFAULT_MODEL: model 'mpl' not found; did you mean 'mlp'?",
    ):
        assert any(line.startswith(begin) for line in lines), begin


def test_check_mentions_configs_that_are_not_read(models: Path) -> None:
    """A wrong ending is a problem; a config in a version's folder is only mentioned."""
    (models / "mlp" / "config.yaml").rename(models / "mlp" / "1" / "config.yaml")
    models.with_name("rollouts.yml").touch()
    found = run("check", "--no-open", "--models", str(models))
    assert "mlp/1/config.yaml is not read; move it to mlp/config.yaml\n" in found.stdout
    assert "rollouts.yml: is not read; rename it to rollouts.yaml\n" in found.stdout
    assert found.exit_code == 1
    models.with_name("rollouts.yml").unlink()
    assert run("check", "--no-open", "--models", str(models)).exit_code == 0


def test_check_says_why_no_input_is_padded(models: Path) -> None:
    """The config may misspell the input's name; the model still serves."""
    (models / "mlp" / "config.yaml").write_text("batching: {pad: {input_idz: {axis: 1}}}")
    found = run("check", "--models", str(models))
    assert "mlp/1: padding is off: input 'input_idz' not found\n" in found.stdout
    assert found.exit_code == 0


def test_check_says_why_requests_run_one_by_one(models: Path) -> None:
    """It reports what the graph shows, and without opening what the manifest states."""
    folder = models / "mlp" / "1"
    assert "one by one" not in run("check", "--models", str(models)).stdout
    onnx_models.save(onnx_models.rows_sum(), folder / "model.onnx")
    rows = {"verdict": "proven", "reason": ""}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "rows": rows}))
    opened = run("check", "--models", str(models)).stdout
    assert "mlp/1: requests run one by one: rows may influence each other; ReduceSum" in opened
    assert "mlp/1: its manifest is ignored: it states that rows are proven" in opened
    assert "one by one" not in run("check", "--no-open", "--models", str(models)).stdout
    rows = {"verdict": "refuted", "reason": "ReduceSum 'y': it adds up over all rows"}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "rows": rows}))
    closed = run("check", "--no-open", "--models", str(models)).stdout
    assert f"mlp/1: requests run one by one, as in its manifest: {rows['reason']}\n" in closed
    (models / "mlp" / "config.yaml").write_text("batching: {max_batch_size: 1}")
    assert "one by one" not in run("check", "--models", str(models)).stdout


def test_check_compares_a_version_with_its_manifest(models: Path) -> None:
    """A file that is not what was published is a problem of its version."""
    manifest = '{"format": 1, "files": {"model.onnx": "' + "0" * 64 + '"}}'
    (models / "mlp" / "1" / "manifest.json").write_text(manifest)
    done = run("check", "--models", str(models))
    assert done.exit_code == 1
    assert "is not the file that was published" in done.output


def test_check_opens_nothing_when_told(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have the files but not the memory to open them."""

    def open_session(*_: Any, **__: Any) -> None:
        pytest.fail("opened")

    monkeypatch.setattr("cohort.session.open_session", open_session)
    done = run("check", "--models", str(models), "--no-open")
    assert done.exit_code == 0


def test_check_of_an_empty_or_missing_folder_is_a_problem(tmp_path: Path) -> None:
    """Most often it is the wrong folder."""
    assert run("check", "--models", str(tmp_path)).exit_code == 1
    missing = run("check", "--models", str(tmp_path / "models"))
    assert missing.exit_code == 1
    assert "folder not found" in missing.output


def test_exit_codes_of_the_process(models: Path) -> None:
    """A deployment reads 0 as success, 1 as problems and 2 as misuse."""
    assert run_command("check", "--no-open", "--models", models).returncode == 0
    (models / "mlp" / "config.yaml").write_text("a: 1")
    bad = run_command("check", "--models", models)
    assert bad.returncode == 1
    assert "mlp/config.yaml: unknown key 'a'" in bad.stdout
    assert run_command("check", "--model").returncode == 2
    assert run_command("serve", env={"COHORT_PORT": "x"}).returncode == 2


def test_bundled_models_pass() -> None:
    """What comes with Cohort is in order."""
    done = run_command("check", env={"COHORT_MODELS": str(MODELS)})
    assert done.returncode == 0, done.stdout
    assert "3 models, 4 versions" in done.stdout


def test_check_reads_the_rollouts(models: Path) -> None:
    """Every mistake in the file, and versions and models that are not on disk."""
    file = models.parent / "rollouts.yaml"
    file.write_text("mlp: {variants: {a: {version: 1, weight: 1}, b: {version: 7, weight: 1}}}")
    shown = run("check", "--models", str(models), "--no-open")
    assert (
        "rollouts.yaml: mlp.variants.b.version: version 7 not found; available: 1" in shown.output
    )
    assert shown.exit_code == 1
    file.write_text("mpl: {variants: {a: {version: 1, weight: 1}}}")
    shown = run("check", "--models", str(models), "--no-open")
    assert "rollouts.yaml: mpl: model 'mpl' not found; did you mean 'mlp'?" in shown.output
    file.write_text("mlp: {variants: {a: {version: 1, wieght: 1}}}")
    shown = run("check", "--models", str(models), "--rollouts", str(file), "--no-open")
    assert "mlp.variants.a: unknown key 'wieght'" in shown.output
    file.write_text("mlp: {variants: {a: {version: 1, weight: 1}}}")
    assert run("check", "--models", str(models), "--no-open").exit_code == 0


def test_profile_shows_what_a_server_would_choose(tmp_path: Path) -> None:
    """Times, the choice, runs at once, verdicts and bars; the second time from the cache."""
    given = ("profile", "digits", "--models", str(MODELS), "--cache", str(tmp_path))
    first, second = run(*given), run(*given)
    assert (first.exit_code, second.exit_code) == (0, 0)
    for word in ("rows/s", "chosen", "inline", "concurrent runs", "Batching:", "━", "Measured now"):
        assert word in first.output
    assert "Cached profile" in second.output


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (onnx_models.recurrent, ["proven, rows do not influence", "input 'x': rows along axis 1"]),
        (onnx_models.dynamically_quantized, ["refuted\n", "to batch: quantize statically"]),
    ],
)
def test_profile_says_what_the_graph_proves(
    made: Callable[[], onnx.ModelProto], said: list[str], tmp_path: Path
) -> None:
    """It names inputs whose rows are along another axis, or states what to do to batch."""
    onnx_models.save(made(), tmp_path / "models/m/1/model.onnx")
    shown = run("profile", "m", "--models", str(tmp_path / "models"), "--cache", str(tmp_path))
    assert f"Rows, from the graph: {said[0]}" in shown.output
    assert f"\n  {said[1]}" in shown.output


def test_profile_names_what_differs_from_a_kept_one(models: Path, tmp_path: Path) -> None:
    """A changed config needs another measurement, and the command reports it."""
    given = ("profile", "mlp", "--models", str(models), "--cache", str(tmp_path / "cache"))
    run(*given)
    (models / "mlp" / "config.yaml").write_text("{providers: [cpu], batching: {trust: true}}")
    assert "the cached profile differs in batching" in run(*given).output


@pytest.mark.parametrize(
    ("model", "promise", "words"),
    [
        ("dense", False, "Same bits as unbatched: yes"),
        ("sums", False, "Same bits as unbatched: not guaranteed, "),
        ("sums", True, "since its bits would differ otherwise (batching.exact); it takes "),
        (
            "logs",
            True,
            "callers would get other bits than alone (batching.exact): Log 'logs' rounds",
        ),
    ],
)
def test_profile_says_whether_bits_are_those_of_a_lone_answer(
    tmp_path: Path, model: str, promise: bool, words: str
) -> None:
    """It also reports the cost of that promise, if larger batches are faster."""
    folder, cache = tmp_path / "models", str(tmp_path / "cache")
    onnx_models.save(ROUNDINGS[model].model(), folder / "m/1/model.onnx")
    config = f"{{batching: {{exact: {str(promise).lower()}}}, session: {{intra_op_threads: 1}}}}"
    (folder / "m/config.yaml").write_text(config)
    output = run("profile", "m", "--models", str(folder), "--cache", cache).output
    assert words in output or "larger batches are not faster here" in output


def test_profile_in_json_has_these_fields(models: Path, tmp_path: Path) -> None:
    """Programs can rely on them; `profile` is a server's description of the version."""
    cache = str(tmp_path / "cache")
    given = ("profile", "mlp", "--version", "1", "--models", str(models), "--cache", cache)
    described = json.loads(run(*given, "--json").stdout)
    assert list(described) == [
        "model",
        "version",
        "provider",
        "threads",
        "batching_off",
        "padding_off",
        "rows",
        "exact",
        "exact_reason",
        "padding_wanted",
        "profile",
        "differs_from_kept",
    ]
    assert list(described["profile"]) == [
        "seconds_by_rows",
        "chosen_rows",
        "filled_rows",
        "change_seconds",
        "inline_up_to_rows",
        "unpredictable",
        "measured",
        "kept",
        "complete",
        "doubt",
        "threads",
        "concurrency",
    ]
    assert list(described["profile"]["threads"]) == ["chosen", "tried", "gain"]
    assert list(described["profile"]["concurrency"][0]) == [
        "threads",
        "rows",
        "at_once",
        "seconds",
        "rows_per_second",
    ]


def test_profile_of_what_is_not_there_is_an_error(models: Path) -> None:
    """`cohort profile` of a missing model is an error that names the available models."""
    wrong = run("profile", "mpl", "--models", str(models))
    assert wrong.exit_code == 1
    assert "did you mean 'mlp'" in wrong.output or "available: mlp" in wrong.output
    wrong = run("profile", "mlp", "--version", "7", "--models", str(models))
    assert "version 7 of model 'mlp' not found; available: 1" in wrong.output


def test_profile_draws_bars_that_any_encoding_can_write(tmp_path: Path) -> None:
    """The longest belongs to the most rows per second; plain characters where it must be ASCII."""
    given = ("-m", "cohort", "profile", "digits", "--models", str(MODELS), "--cache", str(tmp_path))
    assert "━" * BAR_WIDTH in start(*given, PYTHONIOENCODING="utf-8").stdout
    plain = start(*given, PYTHONIOENCODING="ascii")
    assert plain.returncode == 0, plain.stderr
    assert "-" * BAR_WIDTH in plain.stdout


@pytest.mark.parametrize(
    ("model", "config", "words"),
    [
        ("logs", "batching: {exact: true}", "one by one (batching.exact): Log 'logs' rounds"),
        ("dense", "example: {x: [[1, 2]]}", "the example of config.yaml: input 'x'"),
    ],
)
def test_check_says_what_a_server_would_do_with_a_config(
    tmp_path: Path, model: str, config: str, words: str
) -> None:
    """It reports that a promise costs batching, and that an example does not fit."""
    onnx_models.save(ROUNDINGS[model].model(), tmp_path / "m/1/model.onnx")
    (tmp_path / "m/config.yaml").write_text(config)
    output = run("check", "--models", str(tmp_path)).output
    assert words in " ".join(output.split())


def test_check_and_profile_say_for_which_examples_rows_are_independent(tmp_path: Path) -> None:
    """Both report the reason for the other examples; a single example has no number."""
    heard = BROUGHT["heard"]
    onnx_models.save(heard.model(), tmp_path / "m/1/model.onnx")
    short = "{sound: {shape: [1, 4]}, state: {shape: [2, 1, 8]}, rate: 8}"
    long = "{sound: {shape: [1, 16]}, state: {shape: [2, 1, 8]}, rate: 8}"
    (tmp_path / "m/config.yaml").write_text(f"example: [{long}, {short}]")
    checked = " ".join(run("check", "--models", str(tmp_path)).output.split())
    assert "m/1: some requests run one by one, such as example 2: rows may influence" in checked
    arguments = ("profile", "m", "--models", str(tmp_path), "--cache", str(tmp_path / "cache"))
    profiled = " ".join(run(*arguments).output.split())
    assert (
        "in requests of these sizes only: 'sound' [1, 16], 'state' [2, 1, 8], 'rate' 8" in profiled
    )


def test_check_warns_where_callers_may_change_each_others_answers(tmp_path: Path) -> None:
    """They may if the config trusts rows against the graph."""
    onnx_models.save(onnx_models.normalized_over_rows(), tmp_path / "m/1/model.onnx")
    (tmp_path / "m/config.yaml").write_text("batching: {trust: refuted}")
    output = " ".join(run("check", "--models", str(tmp_path)).output.split())
    assert (
        "m/1: requests in a batch may change each other's answers (batching.trust): rows may"
        in output
    )
