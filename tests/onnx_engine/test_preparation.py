"""Work that a load does once, however many parts of it need the result."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from cohort.batching import BatchPolicy, RunFeeds
from cohort.errors import LoadFailed
from cohort.inspection import Inspector
from cohort.onnx_engine import VersionOpener, measurement, opening, preparation, turns
from cohort.onnx_engine.preparation import PreparedVersion, prepare_version
from cohort.profiling import Threads, Trial, find_trial, result
from cohort.profiling.runs import FREE_RUNS
from cohort.registry import Source
from cohort.repository import (
    Example,
    Manifest,
    ModelConfig,
    Published,
    WarmUp,
    dump_manifest,
    read_published,
    stamp_files,
)
from cohort.row_independence import RequestKind, RowKind
from cohort.session import (
    CancellationToken,
    Opener,
    Provider,
    Session,
    WorkCancelled,
    digests,
    open_session,
    optimized_graph,
)
from cohort.session.digests import hash_file
from cohort.system.confinement import status_bytes
from tests import onnx_models
from tests.waiting import PATIENCE, wait_until

CHAIN = (Provider("cpu"),)
CONFIG = ModelConfig(providers=CHAIN, batching=BatchPolicy(max_batch_size=2))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model with a manifest: digests, and an example that it fulfils."""
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "mlp" / "1" / "model.onnx")
    publish(path)
    return path


def publish(path: Path) -> None:
    session = open_session(path, chain=CHAIN)
    feeds = {"x": np.ones((2, 4), "f4")}
    outputs = dict(zip([spec.name for spec in session.outputs], session.run(feeds), strict=True))
    manifest = Manifest(1, {path.name: hash_file(path)}, examples=(Example(feeds, outputs),))
    (path.parent / "manifest.json").write_bytes(dump_manifest(manifest))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often files were hashed, by name, and inputs looked for (`trial`).

    Every graph is kept, and two threads are the best for exclusive runs. So every part that needs a
    digest or a trial takes part, once the version is measured.
    """
    counter: Counter[str] = Counter()

    def counted_hash(file: Path) -> str:
        counter["graph" if "optimized" in file.parts else file.name] += 1
        return hash_file(file)

    def counted_search(*arguments: Any) -> Trial:
        counter["trial"] += 1
        return find_trial(*arguments)

    def find_threads(
        session: Session, trial: Trial, seconds: float, reopen: Any, runs: Any
    ) -> Threads:
        with_two = reopen(2)
        with_two.run(trial.feeds(1))
        with_two.close()
        return Threads(2, 2, 1.5)

    monkeypatch.setattr(digests, "hash_file", counted_hash)
    monkeypatch.setattr(preparation, "find_trial", counted_search)
    monkeypatch.setattr(result, "may_pay", lambda *_: True)
    monkeypatch.setattr(result, "find_threads", find_threads)
    monkeypatch.setattr(optimized_graph, "pays", lambda opening, hashing: True)
    return counter


def load(path: Path, cache: Path | None, config: ModelConfig = CONFIG) -> PreparedVersion:
    """Load a version, and measure in full what the load left out."""
    prepared = prepare_version(Source(path, "", config), VersionOpener(cache))
    if not prepared.profile_result.complete:
        assert prepared.measurement is not None
        found = prepared.measurement.fully(FREE_RUNS)
        exclusive = prepared.measurement.open_exclusive(found, FREE_RUNS.of)
        prepared = prepared.profiled(found, exclusive)
    prepared.close()
    return prepared


def test_cold_load_hashes_the_model_once_and_looks_for_inputs_once(
    path: Path, tmp_path: Path, counts: Counter[str]
) -> None:
    """The manifest, optimized graph, profile, threads and exclusive session share the results."""
    first = load(path, tmp_path / "cache")
    assert (counts["model.onnx"], counts["trial"]) == (1, 1)
    assert (first.profile_result.kept, first.exclusive is not None) == (False, True)


def test_warm_load_hashes_the_model_and_the_kept_graph_once_each(
    path: Path, tmp_path: Path, counts: Counter[str]
) -> None:
    """The kept profile and the kept graph are both known by the model's digest."""
    load(path, tmp_path / "cache")
    counts.clear()
    assert load(path, tmp_path / "cache").profile_result.kept
    assert counts == {"model.onnx": 1, "graph": 1, "trial": 1}


def test_load_without_a_manifest_or_cache_hashes_nothing(path: Path, counts: Counter[str]) -> None:
    """There is nothing to compare a digest with."""
    (path.parent / "manifest.json").unlink()
    load(path, None)
    assert counts == {"trial": 1}


def test_file_that_changes_before_it_is_opened_fails_the_load(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was verified is not what was opened."""

    def read_and_swap(*arguments: Any, **named: Any) -> Published:
        published = read_published(*arguments, **named)
        onnx_models.save(onnx_models.mlp(seed=1), path)
        return published

    monkeypatch.setattr(opening, "read_published", read_and_swap)
    with pytest.raises(LoadFailed, match="is not the file that was published"):
        load(path, None)


@pytest.mark.parametrize("moment", ["hash", "search"])
def test_file_that_changes_during_a_load_leaves_no_profile_behind(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its digest would be that of other weights than those that were measured."""
    (path.parent / "manifest.json").unlink()
    cache = tmp_path / "cache"

    def change() -> None:
        onnx_models.save(onnx_models.mlp(seed=1), path)

    def hash_and_change(file: Path) -> str:
        found = hash_file(file)
        change()
        return found

    def change_and_search(*arguments: Any) -> Trial:
        change()
        return find_trial(*arguments)

    with monkeypatch.context() as patched:
        if moment == "hash":
            patched.setattr(digests, "hash_file", hash_and_change)
        else:
            patched.setattr(preparation, "find_trial", change_and_search)
        assert not load(path, cache).profile_result.kept
    assert not list(cache.rglob("*.json"))
    assert not load(path, cache).profile_result.kept
    assert load(path, cache).profile_result.kept


def test_model_that_refuses_synthetic_inputs_is_served_with_a_reason(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither warmed up nor measured, and has the manifest's example to show."""
    monkeypatch.setattr(preparation, "find_trial", lambda *_: Trial(problem="only ISO dates"))
    prepared = load(path, None)
    assert "only ISO dates" in prepared.profile_result.profile.reason
    assert prepared.example is not None
    (path.parent / "manifest.json").unlink()
    assert load(path, None).example is None


def test_runs_without_end_are_ended_when_the_load_is_cancelled(tmp_path: Path) -> None:
    """They end between two nodes, with the given reason; no profile is kept."""
    endless = onnx_models.growing_with_rows(loops=True)
    path = onnx_models.save(endless, tmp_path / "slow" / "3" / "model.onnx")
    cache, token = tmp_path / "cache", CancellationToken()
    source = Source(path, "", replace(CONFIG, warm_up=WarmUp((1, 8))))
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(prepare_version, source, VersionOpener(cache), token)
        wait_until(lambda: token.stage == "in its first runs")
        token.cancel("enough")
        with pytest.raises(WorkCancelled, match="enough"):
            load.result(PATIENCE)
    assert not list(cache.rglob("*.json"))


@pytest.mark.parametrize(("wanted", "rows"), [(None, [1]), ((1, 4), [1, 4])])
def test_no_run_is_larger_than_what_it_prepares(
    path: Path, monkeypatch: pytest.MonkeyPatch, wanted: tuple[int, ...] | None, rows: list[int]
) -> None:
    """The CPU prepares one row, unless an operator wants more."""
    (path.parent / "manifest.json").unlink()
    seen: list[int] = []

    def warm_up(run: RunFeeds, trial: Trial, rows_of_runs: Sequence[int]) -> Trial:
        seen.extend(rows_of_runs)
        return trial

    monkeypatch.setattr(preparation, "warm_up", warm_up)
    load(path, None, replace(CONFIG, warm_up=WarmUp(wanted)))
    assert seen == rows


def test_what_first_runs_took_of_memory_is_given_back(tmp_path: Path) -> None:
    """A row of this model takes 256 MB for a moment; its session keeps no part of it."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> wide (float[N, 1] x) => (float[N, 1] y)
        <int64[2] wide = {1, 67108864}, int64[1] one = {1}>
        { z = Relu(x) much = Expand(z, wide) y = ReduceMax<keepdims = 1>(much, one) }"""
    )
    path = onnx_models.save(made, tmp_path / "wide/1/model.onnx")
    before = status_bytes("RssAnon:")
    prepared = prepare_version(Source(path, "", CONFIG), VersionOpener(None))
    try:
        assert prepared.profile_result.profile.seconds
        assert status_bytes("RssAnon:") - before < 128 << 20
        row = {"x": np.full((1, 1), 2, "f4")}
        assert prepared.session.run(row)[0].tolist() == [[2]]
        assert status_bytes("RssAnon:") - before > 128 << 20
        prepared.session.give_back(row)
        assert status_bytes("RssAnon:") - before < 128 << 20
    finally:
        prepared.close()


def test_a_version_whose_runs_take_for_ever_keeps_out_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs take turns with a limited wait. The wait does not count as time of the run."""
    monkeypatch.setattr(turns, "MAX_TURN_SECONDS", 0.3)
    token = CancellationToken()
    with turns.RUNNING.turn(CancellationToken()):
        prepared = prepare_version(Source(path, "", CONFIG), VersionOpener(None), token)
    assert prepared.profile_result.profile.seconds
    assert token.waited >= 0.3


def test_cancelling_during_exclusive_runs_leaves_a_version_that_serves(
    path: Path, tmp_path: Path, counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other session has had its runs."""
    (path.parent / "manifest.json").unlink()
    load(path, tmp_path / "cache")  # keeps a profile with two threads
    token = CancellationToken()
    warmed: list[RunFeeds] = []

    def warm_up(run: RunFeeds, trial: Trial, rows: Sequence[int]) -> Trial:
        warmed.append(run)
        if len(warmed) == 2:
            token.cancel("enough")
            run(trial.feeds(1))
        return trial

    for module in (preparation, measurement):
        monkeypatch.setattr(module, "warm_up", warm_up)
    prepared = prepare_version(Source(path, "", CONFIG), VersionOpener(tmp_path / "cache"), token)
    prepared.close()
    assert prepared.exclusive is None
    assert prepared.profile_result.profile.seconds


def test_a_cache_that_is_deleted_during_a_load_is_no_fault_of_the_model(tmp_path: Path) -> None:
    """The load fails because its private copy is missing, names that reason, and can be retried."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "m/1/model.onnx")
    source, cache = Source(path, "a", CONFIG), tmp_path / "cache"

    class Deleting:
        def inspect(self, opener: Opener) -> None:
            shutil.rmtree(cache)

    with pytest.raises(LoadFailed, match="deleted from COHORT_CACHE") as failed:
        prepare_version(source, VersionOpener(cache, inspector=cast(Inspector, Deleting())))
    assert failed.value.transient
    prepare_version(source, VersionOpener(cache)).close()


@pytest.mark.parametrize("change", ["moved away", "written"])
def test_files_that_change_while_they_are_loaded_may_load_another_time(
    path: Path, change: str
) -> None:
    """This holds for every failure of the load: it is not a verdict on the files that changed."""
    source = Source(path, stamp_files(str(path.parent))[0], CONFIG)

    class Changing:
        def inspect(self, opener: Opener) -> None:
            if change == "moved away":
                path.parent.parent.rename(path.parent.parent.with_name("away"))
            else:
                path.write_bytes(b"something else")
            raise LoadFailed("it is broken")

    class Broken:
        def inspect(self, opener: Opener) -> None:
            raise LoadFailed("it is broken")

    for inspector, transient in ((Broken(), False), (Changing(), True)):
        with pytest.raises(LoadFailed, match="it is broken") as failed:
            prepare_version(source, VersionOpener(None, inspector=cast(Inspector, inspector)))
        assert failed.value.transient == transient


def test_the_configs_example_is_shown_and_tried(path: Path) -> None:
    """It comes before those of the manifest, as the operator wrote it."""
    prepared = load(path, None, replace(CONFIG, example=({"x": [[1, 2, 3, 4.5]]},)))
    assert prepared.example is not None
    assert prepared.example["x"].tolist() == [[1, 2, 3, 4.5]]
    assert prepared.measurement is not None
    first, second = prepared.measurement.trial.examples
    assert (first["x"].tolist(), second["x"].shape) == ([[1, 2, 3, 4.5]], (2, 4))


def test_an_example_may_be_given_by_its_shape(path: Path) -> None:
    """Its values are made, and not all the same; several examples may be given."""
    given = ({"x": {"shape": [3, 4]}}, {"x": [[1, 2, 3, 4]]})
    prepared = load(path, None, replace(CONFIG, example=given))
    assert prepared.measurement is not None
    made, written = prepared.measurement.trial.examples
    assert (made["x"].shape, len(np.unique(made["x"]))) == ((3, 4), 12)
    assert written["x"].tolist() == [[1, 2, 3, 4]]


def listening(folder: Path) -> Path:
    """Return a model as Silero's, which takes long sounds only and one state for each row."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        listening (float[A, B] sound, float[2, C, 8] state, int64 rate) => (float[A, D] y)
        <int64[4] pads = {0, 0, 0, 300}, float[1, 8, 8] w = {0}, int64[1] zero = {0},
         float[2] taken = {1, 2}>
        { padded = Pad<mode = "reflect">(sound, pads)
          eight = Div(rate, eight_of) at = Sub(eight, one_of) chosen = Gather(taken, at)
          first = Gather<axis = 0>(state, zero) flat = Squeeze(first, zero)
          s = ReduceSum<keepdims = 1>(flat) z = Mul(s, chosen) y = Add(padded, z) }"""
    )
    graph = made.graph
    for name, value in (("eight_of", 8), ("one_of", 1)):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, "i8"), name))
    return onnx_models.save(made, folder / "listening/1/model.onnx")


def test_a_model_that_takes_few_sizes_is_told_the_key_that_names_them(tmp_path: Path) -> None:
    """The error contains the model's inputs; a shape needs only its sizes."""
    path = listening(tmp_path)
    told = load(path, None).profile_result.profile.reason
    assert "Pad reflect" in told
    assert "`example: {sound: [?, ?], state: [2, ?, 8], rate: []}` in config.yaml" in told
    prepared = load(
        path, None, replace(CONFIG, example=({"sound": [1, 512], "state": [2, 1, 8], "rate": 16},))
    )
    assert prepared.profile_result.profile.seconds
    assert prepared.example is not None
    shapes = {name: array.shape for name, array in prepared.example.items()}
    assert shapes == {"sound": (1, 512), "state": (2, 1, 8), "rate": ()}
    advice = r"with made-up values for 'sound', 'state', 'rate': .* such as sr: 16000"
    with pytest.raises(LoadFailed, match=advice):
        load(
            path,
            None,
            replace(CONFIG, example=({"sound": [1, 512], "state": [2, 3, 9], "rate": []},)),
        )


def test_an_example_may_be_a_file_of_the_version(path: Path) -> None:
    """The file is from `numpy.savez`; its values count if the model refuses made-up ones."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> places (int64[N] at) => (float[N] y)
        <float[200] table = {0}> { y = Gather(table, at) }"""
    )
    folder = path.parent.parent.parent / "places/1"
    table = onnx.numpy_helper.from_array(np.arange(200, dtype="f4"), "table")
    del made.graph.initializer[:]
    made.graph.initializer.append(table)
    onnx_models.save(made, folder / "model.onnx")
    np.savez(folder / "rows.npz", at=np.array([7, 199]))
    config = replace(CONFIG, example=("rows.npz", {"at": [3]}))
    prepared = load(folder / "model.onnx", None, config)
    assert prepared.example is not None
    assert prepared.example["at"].tolist() == [7, 199]
    assert prepared.measurement is not None
    assert len(prepared.measurement.trial.examples) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "'rows.npz' not found: put it into the version's folder"),
        (b"PK", "'rows.npz' is not a .npz file, or is truncated"),
        ({"x": np.zeros((1, 4), "f8")}, "input 'x' must be FP32, got FP64"),
        ({"x": np.zeros((1, 5), "f4")}, "input 'x'"),
        ({"x": np.array([None])}, "pickled objects, which are never loaded"),
        ({"y": np.zeros((1, 4), "f4")}, "input 'y' not found"),
        ({"x": np.zeros((1 << 25, 4), "f4")}, "'rows.npz' holds 512 MiB; at most 256 are read"),
    ],
)
def test_a_file_that_is_no_example_fails_the_load(path: Path, content: Any, reason: str) -> None:
    """Nothing is unpickled, and no more is unpacked than an example may have."""
    if isinstance(content, dict):
        np.savez_compressed(path.parent / "rows.npz", **content)
    elif content is not None:
        (path.parent / "rows.npz").write_bytes(content)
    with pytest.raises(LoadFailed, match=reason):
        load(path, None, replace(CONFIG, example=("rows.npz",)))


def test_made_texts_are_fewer_than_made_numbers(path: Path) -> None:
    """The limit for synthetic texts is lower than for numbers, because texts take long to make."""
    text = "(string[N] x) => (string[N] y) { y = Identity(x) }"
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> texts {text}')
    path = onnx_models.save(made, path.parent.parent.parent / "texts/1/model.onnx")
    load(path, None, replace(CONFIG, example=({"x": {"shape": [3]}},)))
    with pytest.raises(LoadFailed, match="input 'x' would have"):
        load(path, None, replace(CONFIG, example=({"x": {"shape": [1 << 20]}},)))


def asked_by_length(folder: Path) -> Path:
    """Return a model whose rows are independent where they are at least 8 long."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> asked (float[N, T] x) => (float[N, U] y)
        <int64 at = {1}, int64 eight = {8}>
        { s = Shape(x) length = Gather(s, at) short = Less(length, eight)
          y = If(short) <then_branch = shorter () => (float[N, U] a) { a = Softmax<axis = 0>(x) },
                        else_branch = longer () => (float[N, U] b) { b = Relu(x) }> }"""
    )
    onnx_models.save(made, folder / "asked/1/model.onnx")
    return folder / "asked/1/model.onnx"


def test_examples_have_their_sizes_proven(path: Path) -> None:
    """This holds for later sessions too, unless the operator vouches for all sizes."""
    path = asked_by_length(path.parent.parent.parent)
    example = ({"x": {"shape": [1, 9]}}, {"x": {"shape": [1, 4]}})
    config = replace(CONFIG, example=example)
    prepared = load(path, None, config)
    assert prepared.session.rows.requests == (RequestKind({"x": (1, 9)}),)
    assert prepared.measurement is not None
    assert prepared.measurement.opener.open().rows == prepared.session.rows
    trusted = replace(config, batching=BatchPolicy(trust="refuted"))
    assert load(path, None, trusted).session.rows.kind is RowKind.REFUTED


def test_a_version_is_measured_with_requests_that_share_runs(path: Path) -> None:
    """This holds for any first example, which the page shows; and it has the bits of these."""
    path = asked_by_length(path.parent.parent.parent)
    example = ({"x": {"shape": [2, 4]}}, {"x": {"shape": [3, 9]}})
    batching = BatchPolicy(exact=True)
    prepared = load(path, None, replace(CONFIG, example=example, batching=batching))
    assert prepared.measurement is not None
    assert prepared.measurement.trial.feeds(1)["x"].shape == (1, 9)
    assert prepared.example is not None
    assert prepared.example["x"].shape == (2, 4)
    exactness = prepared.profile_result.exactness
    assert exactness is not None
    assert exactness.least_rows == 1


def test_an_example_of_each_kind_is_tried(path: Path) -> None:
    """Each kind is tried once; if all kinds may share runs, the first two are tried."""
    path = asked_by_length(path.parent.parent.parent)
    lengths = (9, 4, 10, 9, 11)
    config = replace(CONFIG, example=tuple({"x": {"shape": [1, one]}} for one in lengths))
    measured = load(path, None, config).measurement
    assert measured is not None
    assert [one["x"].shape for one in measured.trial.examples] == [(1, 9), (1, 10), (1, 11)]


def test_a_profile_is_kept_for_examples_of_its_sizes(path: Path, tmp_path: Path) -> None:
    """Longer ones take longer."""
    text = "(float[N, T] x) => (float[N, T] y) { y = Relu(x) }"
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> open {text}')
    path = onnx_models.save(made, path.parent.parent.parent / "open/1/model.onnx")
    kept = []
    for length in (9, 9, 10, 9):
        config = replace(CONFIG, example=({"x": {"shape": [1, length]}},))
        kept.append(load(path, tmp_path / "cache", config).profile_result.kept)
    assert kept == [False, True, False, True]


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        ({"x": {"shape": [1 << 40, 4]}}, "input 'x' would have"),
        ({"x": {"shape": [True, 4]}}, "input 'x': shape must be a list such as"),
        ({"x": {"shape": "4"}}, "input 'x': shape must be a list such as"),
        ({"x": {"shape": [2, 5]}}, "input 'x'.* .with made-up values for 'x': "),
        ({"x": [2, 5]}, "input 'x'.* .with made-up values for 'x': "),
        ({"x": [1, 2, 3, 4]}, "input 'x'"),
        ({"x": {"shapes": [2, 4]}}, "input 'x' needs values or .*got the keys 'shapes'"),
        ({"y": {"shape": [2, 4]}}, "input 'y' not found"),
        ({"x": [[1, 2]]}, "input 'x'"),
        ({"x": "text"}, "input 'x'"),
        ({"y": [[1]]}, "input 'y' not found"),
        ({"x": [[10**400, 1, 1, 1]]}, ""),
    ],
)
def test_an_example_that_does_not_fit_fails_the_load(
    path: Path, example: dict[str, Any], reason: str
) -> None:
    """The reason is the one that a caller of /predict gets."""
    with pytest.raises(LoadFailed, match=rf"the example of config\.yaml: .*{reason}"):
        load(path, None, replace(CONFIG, example=(example,)))
