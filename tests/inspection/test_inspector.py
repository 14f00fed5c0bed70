"""Models that are opened in a child process first, with the real child."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.errors import LoadFailed
from cohort.inspection import Inspected, InspectionLimits, Inspector
from cohort.inspection.inspector import start_process
from cohort.inspection.job import read_verdict, write_verdict
from cohort.row_independence import OutputRows, RowKind, RowVerdict
from cohort.session import ModelRules, Opener, Provider, SessionOptions
from tests import onnx_models
from tests.bundled import model_path
from tests.inspection.pool import Pool
from tests.waiting import wait_until

CHAIN = (Provider("cpu"),)
PLENTY = InspectionLimits(seconds=60, megabytes=2048)
LITTLE_MEMORY = InspectionLimits(seconds=60, megabytes=256)
LITTLE_TIME = InspectionLimits(seconds=1, megabytes=2048)


class Inspectors:
    """Makes inspectors that share a cache, and records what they inspect."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.seen: list[Inspected] = []
        self.made: list[Inspector] = []

    def __call__(self, limits: InspectionLimits = PLENTY) -> Inspector:
        self.made.append(Inspector(limits, self.cache, self.seen.append))
        return self.made[-1]

    @property
    def kept(self) -> list[Path]:
        """The kept findings."""
        return list((self.cache / "inspections").glob("*"))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@pytest.fixture
def inspectors(tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inspectors]:
    monkeypatch.setattr("cohort.inspection.inspector.start_process", pool.take)
    made = Inspectors(tmp_path / "cache")
    yield made
    pool.keeps = True
    for one in made.made:
        one.rest()
    pool.keeps = False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m" / "1" / "model.onnx"


def opener(path: Path, model: onnx.ModelProto | None = None) -> Opener:
    """Opens `model`, written to `path`, or what is there."""
    if model is not None:
        onnx_models.save(model, path)
    return Opener(path, chain=CHAIN)


def children() -> set[int]:
    """The processes that this one has."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def test_model_is_inspected_once(inspectors: Inspectors, path: Path) -> None:
    """Another inspector, of a later start, knows the finding and starts no process."""
    first, second = inspectors(), inspectors()
    digests = first.inspect(opener(path, onnx_models.mlp()))
    assert digests == opener(path).file_digests()
    assert second.inspect(opener(path)) == digests
    assert [(one.model, one.harm) for one in inspectors.seen] == [(path.parent.parent.name, "")]
    assert (first.busy, second.busy) == (True, False)
    first.rest()
    assert not first.busy


def test_bundled_models_need_no_process(inspectors: Inspectors) -> None:
    """They need no kept finding either."""
    inspector = inspectors()
    for name, version in (("iris", 1), ("digits", 1), ("digits", 2)):
        assert inspector.inspect(opener(model_path(name, version)))
    assert not inspector.busy
    assert not inspectors.kept


def test_inspection_can_be_turned_off(inspectors: Inspectors, path: Path) -> None:
    """Zero seconds are none."""
    inspector = inspectors(InspectionLimits(seconds=0))
    assert inspector.inspect(opener(path, onnx_models.mlp())) is None
    assert not inspector.busy


def test_crash_kills_the_child_only_and_is_remembered(inspectors: Inspectors, path: Path) -> None:
    """The next model gets another child, and the next start the finding."""
    inspector = inspectors()
    crashing = onnx_models.calling_functions(20_000, calls=1)
    with pytest.raises(LoadFailed, match=r"crashed ONNX Runtime .*SIGSEGV"):
        inspector.inspect(opener(path, crashing))
    inspector.inspect(opener(path.with_name("other.onnx"), onnx_models.mlp()))
    with pytest.raises(LoadFailed, match="SIGSEGV"):
        inspectors().inspect(opener(path))
    assert [bool(one.harm) for one in inspectors.seen] == [True, False]


def test_a_fatal_division_is_found_before_it_serves(inspectors: Inspectors, path: Path) -> None:
    """No ordinary value shows it; where the model is opened so that it is none, it serves."""
    with pytest.raises(LoadFailed, match=r"SIGFPE.*least one by -1"):
        inspectors().inspect(opener(path, onnx_models.divide(function=True)))
    inspectors().inspect(opener(path.with_name("other.onnx"), onnx_models.divide()))


def test_too_much_memory_is_refused_but_not_remembered(inspectors: Inspectors, path: Path) -> None:
    """What is too much depends on the machine; more is enough."""
    inspector = inspectors(LITTLE_MEMORY)
    with pytest.raises(LoadFailed, match="COHORT_INSPECTION_MB"):
        inspector.inspect(opener(path, onnx_models.hoard(10**8)))
    assert not inspectors.kept
    assert inspectors(PLENTY).inspect(opener(path))


def test_memory_it_took_is_told_and_remembered(inspectors: Inspectors, path: Path) -> None:
    """The most there was at a time, opening and runs together, by an opener of either start."""
    onnx_models.save(onnx_models.hoard(10**8), path)
    first, second = opener(path), opener(path)
    inspectors().inspect(first)
    inspectors().inspect(second)
    assert len(inspectors.seen) == 1
    assert 10**8 <= first.peak == second.peak < PLENTY.memory


def test_rows_are_followed_in_the_child_and_remembered(
    inspectors: Inspectors, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph whose proof takes seconds holds no thread of the server, now or later."""
    expected = opener(path, onnx_models.normalized_over_rows())
    expected.read()
    assert expected.rows.kind is RowKind.REFUTED

    def never(graphs: object) -> None:
        raise AssertionError("followed here")

    monkeypatch.setattr("cohort.session.model_files.prove_rows", never)
    for _ in range(2):
        other = opener(path)
        inspectors().inspect(other)
        session = other.open()
        assert session.rows == expected.rows
        session.close()
    assert len(inspectors.seen) == 1


@given(
    st.builds(
        RowVerdict,
        kind=st.sampled_from(RowKind),
        node=st.text(),
        inputs=st.dictionaries(st.text(), st.none() | st.integers(0, 9)),
        outputs=st.dictionaries(
            st.text(),
            st.none() | st.builds(OutputRows, st.integers(0, 9), st.none() | st.integers(1, 9)),
        ),
        equal_sizes=st.booleans(),
        dependence=st.text(),
    )
)
def test_a_verdict_is_read_as_it_was_written(verdict: RowVerdict) -> None:
    """JSON carries it over a pipe and in a file."""
    assert read_verdict(json.loads(json.dumps(write_verdict(verdict)))) == verdict


def test_limit_of_the_models_own_is_no_harm(inspectors: Inspectors, path: Path) -> None:
    """A run over `memory_limit_mb` fails alone in the server, so inspection accepts the model."""
    onnx_models.save(onnx_models.hoard(10**8), path)
    limited = Opener(path, chain=CHAIN, memory_limit_mb=16)
    assert inspectors(LITTLE_MEMORY).inspect(limited)


def test_run_without_end_is_ended(inspectors: Inspectors, path: Path) -> None:
    """The system ends it, with the limits of the child."""
    with pytest.raises(LoadFailed, match="COHORT_INSPECTION_SECONDS"):
        inspectors(LITTLE_TIME).inspect(opener(path, onnx_models.endless()))


@pytest.mark.parametrize(
    ("loops", "setting"), [(True, "COHORT_INSPECTION_SECONDS"), (False, "COHORT_INSPECTION_MB")]
)
def test_harm_that_takes_several_rows_is_seen(
    inspectors: Inspectors, path: Path, loops: bool, setting: str
) -> None:
    """The server warms a model up and profiles it with as many."""
    limits = LITTLE_TIME if loops else PLENTY
    with pytest.raises(LoadFailed, match=setting):
        inspectors(limits).inspect(opener(path, onnx_models.growing_with_rows(loops=loops)))


def test_what_is_wrong_otherwise_is_for_opening_to_say(inspectors: Inspectors, path: Path) -> None:
    """The server finds the same, with its own sentence."""
    inspector = inspectors()
    onnx_models.save(onnx_models.mlp(), path)
    path.write_bytes(path.read_bytes()[:-20])
    inspector.inspect(opener(path))
    path.unlink()
    assert inspector.inspect(opener(path)) == {}
    with pytest.raises(LoadFailed, match="not found"):
        opener(path).open()


def test_what_is_no_file_or_too_large_is_not_read(inspectors: Inspectors, path: Path) -> None:
    """A pipe would be waited for, and a file with a hole of a terabyte be hashed."""
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(LoadFailed, match="is not a file"):
        inspectors().inspect(opener(path))
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(LoadFailed, match="COHORT_MAX_MODEL_MB"):
        inspectors().inspect(Opener(path, chain=CHAIN, rules=ModelRules(max_bytes=1 << 30)))
    assert not inspectors.seen


def test_external_data_counts(inspectors: Inspectors, path: Path) -> None:
    """A model with other external data is another model, and is inspected."""
    onnx_models.save_with_external_data(onnx_models.mlp(), path)
    weights = path.with_name("weights.bin")
    first = inspectors().inspect(opener(path))
    assert first is not None
    assert set(first) == {"model.onnx", "weights.bin"}
    weights.write_bytes(bytes(weights.stat().st_size))
    assert inspectors().inspect(opener(path)) != first
    assert len(inspectors.seen) == 2


def test_limits_and_options_count(inspectors: Inspectors, path: Path) -> None:
    """A finding holds for the options with which the model was opened."""
    inspectors().inspect(opener(path, onnx_models.mlp()))
    inspectors(LITTLE_MEMORY).inspect(opener(path))
    other = Opener(path, chain=CHAIN, options=SessionOptions(graph_optimization="none"))
    inspectors().inspect(other)
    assert len(inspectors.seen) == 3


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"key": {}, "external": {}, "harm": "", "peak": 0}',
        None,  # the right key, and external data that is elsewhere
        "torn",
    ],
)
def test_kept_finding_of_no_use_is_ignored(
    inspectors: Inspectors, path: Path, content: str | None
) -> None:
    """The model is inspected again, and the file replaced."""
    inspectors().inspect(opener(path, onnx_models.mlp()))
    (kept,) = inspectors.kept
    good = kept.read_text()
    if content is None:
        content = json.dumps({**json.loads(good), "external": {"../../secret": "0" * 64}})
    kept.write_text(good[: len(good) // 2] if content == "torn" else content)
    inspectors().inspect(opener(path))
    assert len(inspectors.seen) == 2
    again = json.loads(kept.read_text())
    assert {**again, "peak": 0} == {**json.loads(good), "peak": 0}


def test_cache_that_cannot_be_used_costs_an_inspection_each_start(
    inspectors: Inspectors, path: Path
) -> None:
    """The model is served all the same."""
    inspectors.cache.write_text("in the way")
    for _ in range(2):
        assert inspectors().inspect(opener(path, onnx_models.mlp()))
    assert len(inspectors.seen) == 2


def test_child_knows_no_secret(
    inspectors: Inspectors, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no tokens in its environment and no open files of the server."""
    monkeypatch.setattr(
        "cohort.inspection.inspector.start_process", start_process
    )  # one that starts now
    monkeypatch.setenv("COHORT_ADMIN_TOKEN", "secret-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-2")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    before = children()
    inspectors().inspect(opener(path, onnx_models.mlp()))
    environments = {one: Path(f"/proc/{one}/environ").read_bytes() for one in children() - before}
    assert not any(b"secret" in environment for environment in environments.values())
    (child,) = (one for one, environment in environments.items() if b"PYTHONPATH=" in environment)
    ours = Path(f"/proc/self/fd/{write}").readlink()
    theirs = [file.readlink() for file in Path(f"/proc/{child}/fd").iterdir()]
    os.close(read)
    os.close(write)
    assert ours not in theirs
    limits = Path(f"/proc/{child}/limits").read_text()
    for name in ("Max core file size", "Max file size"):
        (line,) = (line for line in limits.splitlines() if line.startswith(name))
        assert line.split()[-3:-1] == ["0", "0"]
    assert Path(f"/proc/{child}/oom_score_adj").read_text().strip() == "1000"


def test_closing_ends_an_inspection(inspectors: Inspectors, path: Path) -> None:
    """A server that stops does not wait for it."""
    inspector = inspectors()
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(inspector.inspect, opener(path, onnx_models.endless()))
        wait_until(lambda: inspector.busy)
        inspector.close()
        with pytest.raises(LoadFailed, match="the server is stopping"):
            endless.result()


def test_model_that_changes_meanwhile_is_not_passed(inspectors: Inspectors, path: Path) -> None:
    """What was inspected is what is opened."""
    inspector = inspectors(InspectionLimits(seconds=4, megabytes=2048))
    onnx_models.save(onnx_models.endless(), path)
    changed = threading.Event()

    def change() -> None:
        wait_until(lambda: inspector.busy)
        onnx_models.save(onnx_models.mlp(), path)
        changed.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(change)
        with pytest.raises(LoadFailed):
            inspector.inspect(opener(path))
        assert changed.is_set()
    assert not inspectors.kept


def test_custom_operators_are_looked_for_where_the_server_does(
    inspectors: Inspectors, path: Path, tmp_path: Path
) -> None:
    """What is refused there is not loaded in the child."""
    onnx_models.save(onnx_models.mlp(), path)
    options = SessionOptions(custom_op_libraries=("ops.so",))
    with pytest.raises(LoadFailed, match="COHORT_CUSTOM_OPS"):
        inspectors().inspect(Opener(path, chain=CHAIN, options=options))
    (tmp_path / "ops.so").write_bytes(b"not a library")
    rules = ModelRules(custom_ops=(tmp_path,))
    with pytest.raises(LoadFailed, match=r"'ops\.so' are not a library"):
        inspectors().inspect(Opener(path, chain=CHAIN, options=options, rules=rules))


@pytest.mark.skipif(shutil.which("cc") is None, reason="compiles a library")
def test_library_that_aborts_ends_the_child_only(
    inspectors: Inspectors, path: Path, tmp_path: Path
) -> None:
    """Native code is loaded in the child first, like the model."""
    source = tmp_path / "ops.c"
    source.write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { abort(); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "ops.so", source], check=True)
    onnx_models.save(onnx_models.mlp(), path)
    options = SessionOptions(custom_op_libraries=("ops.so",))
    rules = ModelRules(custom_ops=(tmp_path,))
    with pytest.raises(LoadFailed, match="SIGABRT"):
        inspectors().inspect(Opener(path, chain=CHAIN, options=options, rules=rules))
