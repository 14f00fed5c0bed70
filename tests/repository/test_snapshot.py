"""The files on disk."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from cohort.repository import ModelConfig, Snapshot, VersionPolicy, scan, snapshot, version_files
from tests import onnx_models
from tests.waiting import wait_until

LONG_AGO = 1_000_000_000


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def put(models: Path, where: str, content: bytes = b"onnx") -> Path:
    """Write models/<where>/model.onnx."""
    path = models / where / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def now(models: Path, previous: Snapshot | None = None) -> Snapshot:
    """Scan, taking every file as complete."""
    return scan(models, previous, quiet=0)


def told(snapshot: Snapshot) -> dict[str, str]:
    return {problem.file: problem.sentence for problem in snapshot.problems}


def versions(snapshot: Snapshot) -> dict[str, list[int]]:
    return {name: list(model.versions) for name, model in snapshot.models.items()}


def test_models_and_versions_are_found(models: Path) -> None:
    """They are ordered by name and by number, with the path of each."""
    for where in ("iris/10", "iris/9", "a.b-c_D/1"):
        put(models, where)
    found = now(models)
    assert versions(found) == {"a.b-c_D": [1], "iris": [9, 10]}
    assert found.models["iris"].versions[9].path == models / "iris" / "9" / "model.onnx"
    assert found.models["iris"].versions[9].folder == models / "iris" / "9"
    assert found.models["iris"].config == ModelConfig()
    assert found.problems == ()


def test_what_is_no_model_is_passed_over(models: Path) -> None:
    """Files, dot folders and caches next to models, and files next to versions, are ignored."""
    put(models, "iris/1")
    for name in ("README.md", "train.py", "iris/labels.txt"):
        (models / name).touch()
    for name in (".git", "__pycache__", "lost+found", "iris/.tmp-2", "iris/__pycache__"):
        (models / name).mkdir()
    found = now(models)
    assert versions(found) == {"iris": [1]}
    assert found.problems == ()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("iris/01", "rename it to 1"),
        ("iris/0", "must be >= 1"),
        ("iris/v2", "by its number"),
        ("iris/-1", "by its number"),
        ("iris/٣", "by its number"),
        ("_iris/1", "is not a model name"),
        ("ir is/1", "is not a model name"),
        ("é/1", "is not a model name"),
        ("a" * 129 + "/1", "is not a model name"),
    ],
)
def test_name_that_cannot_be_is_told(models: Path, where: str, says: str) -> None:
    """Each problem has its place and the fix, and nothing of it is served."""
    put(models, where)
    found = now(models)
    assert found.models == {}
    assert any(says in sentence for sentence in told(found).values())


def test_version_without_a_whole_model_is_told(models: Path) -> None:
    """There may be no file, an empty one, a folder or a dead link in its place."""
    put(models, "iris/1")
    (models / "iris" / "2").mkdir()
    put(models, "iris/3", b"")
    (models / "iris" / "4" / "model.onnx").mkdir(parents=True)
    (models / "iris" / "5").mkdir()
    (models / "iris" / "5" / "model.onnx").symlink_to("nowhere")
    found = now(models)
    assert versions(found) == {"iris": [1]}
    assert told(found) == {
        "iris/2": "has no model.onnx",
        "iris/3": "its model.onnx is empty",
        "iris/4": "its model.onnx is not a file",
        "iris/5": "its model.onnx is a broken link",
    }


def test_missing_folder_is_a_problem(tmp_path: Path) -> None:
    """A server may start before its models come; nothing raises."""
    found = now(tmp_path / "models")
    assert found.models == {}
    assert "folder not found" in str(found.problems[0])
    (tmp_path / "file").touch()
    assert "is a file" in str(now(tmp_path / "file").problems[0])


def test_model_without_versions_says_where_to_put_one(models: Path) -> None:
    """The commonest slip is a model.onnx right in the model's folder."""
    put(models, "iris")
    (models / "digits").mkdir()
    found = told(now(models))
    assert found["iris"] == "has no version; move model.onnx to iris/1/"
    assert found["digits"] == "has no version, such as digits/1/model.onnx"


def test_what_dvc_has_not_pulled_is_told(models: Path) -> None:
    """A file `NAME.dvc` without its NAME is reported, on each of the three levels."""
    put(models, "iris/1")
    (models / "digits/1").mkdir(parents=True)
    for path in ("iris/1/model.onnx", "iris/2", "iris", "wine", "digits/1/model.onnx"):
        (models / f"{path}.dvc").touch()
    assert told(now(models)) == {
        "wine.dvc": "wine is not here: `dvc pull` fetches it",
        "iris/2.dvc": "2 is not here: `dvc pull` fetches it",
        "digits/1": "has no model.onnx: `dvc pull` fetches it",
    }


@pytest.mark.parametrize(
    ("there", "where", "said"),
    [
        ("mine.onnx", "mine.onnx", "is not looked for here; move it to mine/1/model.onnx"),
        ("model.onnx", "model.onnx", "is not looked for here; move it to <name>/1/model.onnx"),
        ("mine/mine.onnx", "mine", "has no version; move mine.onnx to mine/1/model.onnx"),
        (
            "1/model.onnx",
            "1",
            "has no version; move model.onnx to 1/1/model.onnx, or, if this is a version of a "
            "model, let COHORT_MODELS name the folder above",
        ),
        ("mine/1/mine.onnx", "mine/1", "has no model.onnx; rename mine.onnx to model.onnx"),
        ("mine/1/Model.ONNX", "mine/1", "has no model.onnx; rename Model.ONNX to model.onnx"),
        (
            "mine/1/mine/model.onnx",
            "mine/1",
            "has no model.onnx; move what is in mine/ one folder up",
        ),
        ("mine/1/model.pt", "mine/1", "has no model.onnx; export model.pt to ONNX"),
        (
            "mine/1/model.onnx/saved_model.pb",
            "mine/1",
            "its model.onnx is a TensorFlow SavedModel; convert it with tf2onnx",
        ),
        (
            "mine/v2/model.onnx",
            "mine/v2",
            "a version's folder must be named by its number alone; rename it to 2",
        ),
    ],
)
def test_a_model_in_another_place_is_named_with_its_own(
    models: Path, there: str, where: str, said: str
) -> None:
    """The message covers the places that newcomers try."""
    (models / there).parent.mkdir(parents=True, exist_ok=True)
    (models / there).write_bytes(b"model")
    assert told(now(models))[where] == said


def test_of_many_models_in_another_place_some_are_named(models: Path) -> None:
    """Ten thousand files do not make ten thousand problems, and two in a version are both named."""
    for number in range(20):
        (models / f"m{number}.onnx").touch()
    for name in ("a.onnx", "b.onnx"):
        put(models, "mine/1").rename(models / "mine/1" / name)
    found = told(now(models))
    assert len(found) == 9
    assert found["mine/1"] == "has no model.onnx; rename one of a.onnx, b.onnx to model.onnx"


@pytest.mark.parametrize("name", ["config.yml", "Config.yaml", "config.yaml.txt"])
def test_a_config_by_another_name_is_named(models: Path, name: str) -> None:
    """The model is served without it; if a config.yaml exists, that file is the config."""
    put(models, "iris/1")
    (models / "iris" / name).write_text("versions: all")
    found = now(models)
    assert told(found) == {f"iris/{name}": "is not read; rename it to config.yaml"}
    assert versions(found) == {"iris": [1]}
    (models / "iris" / "config.yaml").touch()
    assert told(now(models)) == {}


def test_config_is_read_and_its_problems_told(models: Path) -> None:
    """A model whose config never could be read does not have one."""
    put(models, "iris/1")
    put(models, "digits/1")
    (models / "iris" / "config.yaml").write_text("versions: all")
    (models / "digits" / "config.yaml").write_text("version: all")
    found = now(models)
    assert found.models["iris"].config == ModelConfig(versions=VersionPolicy(latest=0))
    assert found.models["digits"].config is None
    assert "did you mean 'versions'?" in found.models["digits"].problem
    assert [problem.sentence for problem in found.problems] == [
        "unknown key 'version'; did you mean 'versions'?"
    ]


def test_config_that_breaks_leaves_the_last_good_one(models: Path) -> None:
    """A mistake while serving changes nothing but is reported, until it is fixed."""
    put(models, "iris/1")
    config = models / "iris" / "config.yaml"
    config.write_text("timeout_ms: 5")
    good = now(models)
    config.write_text("timeout_ms: five")
    broken = now(models, good)
    assert broken.models["iris"].config == good.models["iris"].config
    assert "timeout_ms" in broken.models["iris"].problem
    config.write_text("timeout_ms: 50")
    mended = now(models, broken)
    assert mended.models["iris"].config == ModelConfig(timeout_ms=50)
    assert mended.problems == ()


def test_config_that_is_removed_gives_the_defaults(models: Path) -> None:
    """The last good config does not outlive its file."""
    put(models, "iris/1")
    config = models / "iris" / "config.yaml"
    config.write_text("timeout_ms: 5")
    before = now(models)
    config.unlink()
    assert now(models, before).models["iris"].config == ModelConfig()


def test_config_is_read_once(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged file costs a stat, not a YAML parser."""
    put(models, "iris/1")
    config = models / "iris" / "config.yaml"
    config.write_text("timeout_ms: 5")
    monkeypatch.setattr(snapshot, "QUIET_SECONDS", 0)
    before = now(models)
    monkeypatch.delattr(snapshot, "load_model_config")
    assert now(models, before) == before


def test_version_asked_for_by_number_must_be_there(models: Path) -> None:
    """`versions: [2]` without a 2 on disk would serve nothing, silently."""
    put(models, "iris/1")
    (models / "iris" / "config.yaml").write_text("versions: [1, 2]")
    problem = now(models).problems[0]
    assert str(problem) == "iris/config.yaml: versions: version 2 not found; available: 1"


def test_stamp_changes_with_any_file(models: Path) -> None:
    """A file that is replaced, added or removed, even in a subfolder, changes it."""
    path = put(models, "iris/1")
    stamps = [now(models).models["iris"].versions[1].stamp]

    def look() -> None:
        stamps.append(now(models).models["iris"].versions[1].stamp)

    look()
    assert stamps[0] == stamps[1]
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    copy = path.with_name("copy")
    copy.write_bytes(b"ONNX")
    os.utime(copy, ns=times)
    copy.rename(path)  # same size, same time
    look()
    (path.parent / "weights.bin").write_bytes(b"1")
    look()
    (path.parent / "assets").mkdir()
    (path.parent / "assets" / "vocabulary.txt").write_text("a")
    look()
    (path.parent / "weights.bin").unlink()
    look()
    assert len(set(stamps)) == 5


def test_a_file_overwritten_in_place_is_another(models: Path) -> None:
    """It counts as new with the same size and an old time, as some copies set it."""
    path = put(models, "iris/1", b"ONNX")
    before = now(models)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"onnx")
    os.utime(path, ns=times)
    assert now(models, before).models != before.models


def test_fresh_version_waits_for_the_next_scan(models: Path) -> None:
    """Half a copy is never handed on; once it holds still, it is."""
    path = put(models, "iris/1")
    empty = Snapshot()
    first = scan(models, empty, quiet=3600)
    assert first.models == {}
    assert list(first.settling) == [("iris", 1)]
    path.write_bytes(b"onnx, and more of it")
    second = scan(models, first, quiet=3600)
    assert second.models == {}
    assert second.settling != first.settling
    third = scan(models, second, quiet=0)
    assert versions(third) == {"iris": [1]}
    assert third.settling == {}


def test_version_that_is_just_begun_is_no_problem_yet(models: Path) -> None:
    """A folder made a moment ago may be about to get its model."""
    (models / "iris" / "1").mkdir(parents=True)
    assert scan(models, Snapshot(), quiet=3600).problems == ()
    assert told(now(models)) == {"iris/1": "has no model.onnx"}


def test_file_times_ahead_of_our_clock_hold_nothing_up(models: Path) -> None:
    """What was the same a while ago is complete, whatever its times say."""
    path = put(models, "iris/1")
    ahead = time.time() + 10_000
    os.utime(path, (ahead, ahead))
    first = scan(models, Snapshot(), quiet=0.05)
    assert first.models == {}
    second = scan(models, first, quiet=time.monotonic() - first.settling["iris", 1].since)
    assert versions(second) == {"iris": [1]}


def test_version_replaced_in_place_stays_as_it_was_meanwhile(models: Path) -> None:
    """What is loaded is not given up for a copy under way."""
    path = put(models, "iris/1")
    before = now(models)
    path.write_bytes(b"half")
    meanwhile = scan(models, before, quiet=3600)
    assert meanwhile.models == before.models
    after = now(models, meanwhile)
    assert after.models["iris"].versions[1].stamp != before.models["iris"].versions[1].stamp


def test_first_scan_waits_for_fresh_files_only(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start right after a copy has its models; a start with old files is not held up."""
    waits: list[float] = []
    clock = SimpleNamespace(sleep=waits.append, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(snapshot, "time", clock)  # only in this module: others also sleep
    put(models, "iris/1")
    scan(models, quiet=3600)
    assert waits == [3600]
    clock.time = lambda: time.time() + 7200
    assert versions(scan(models, quiet=3600)) == {"iris": [1]}
    assert waits == [3600]


def test_links_are_followed(models: Path, tmp_path: Path) -> None:
    """Mounts of volumes and config maps are made of links, inside and out."""
    put(tmp_path, "elsewhere/7")
    put(models, "iris/1")
    (models / "iris" / "2").symlink_to("1")
    (models / "iris" / "3").symlink_to(tmp_path / "elsewhere" / "7")
    (models / "digits").symlink_to(tmp_path / "elsewhere")
    found = now(models)
    assert versions(found) == {"digits": [7], "iris": [1, 2, 3]}
    assert found.problems == ()


def test_switching_a_link_is_seen(models: Path) -> None:
    """This is how a mounted volume changes: one link is put in another's place."""
    put(models, "iris/.a", b"a")
    put(models, "iris/.b", b"b")
    link = models / "iris" / "1"
    link.symlink_to(".a")
    before = now(models)
    link.unlink()
    link.symlink_to(".b")
    assert now(models, before).models["iris"].versions[1].stamp != (
        before.models["iris"].versions[1].stamp
    )


MOMENT = 0.01
"""Seconds for which nothing may have changed."""


def relink(link: Path, target: Path) -> None:
    """Let a link lead elsewhere, at once, as `ln -s` and `mv -T` do."""
    new = link.with_name("new")
    new.symlink_to(target)
    new.replace(link)


def test_a_release_that_takes_over_by_a_link_raises_no_alarm(tmp_path: Path) -> None:
    """Its versions are found, those of the release before stay for a moment, nothing is wrong."""
    for release, version in (("41", 1), ("42", 2)):
        onnx_models.save(onnx_models.mlp(), tmp_path / f"{release}/iris/{version}/model.onnx")
    models = tmp_path / "models"
    relink(models, tmp_path / "41")
    first = scan(models, quiet=0)
    relink(models, tmp_path / "42")
    changed = (models / "iris/2/model.onnx").stat().st_ctime
    wait_until(lambda: time.time() - changed > MOMENT)
    second = scan(models, first, quiet=MOMENT)
    third = scan(models, second, quiet=0)
    assert [first.problems, second.problems, third.problems] == [()] * 3
    seen = [versions(one)["iris"] for one in (first, second, third)]
    assert seen == [[1], [1, 2], [2]]


class Meanwhile(tuple[str, ...]):
    """Kinds of files that are looked for, with which something else happens once."""

    do: Callable[[], object]

    def __iter__(self) -> Iterator[str]:
        do, self.do = self.do, int
        do()
        return super().__iter__()


def test_a_look_sees_one_tree(tmp_path: Path) -> None:
    """If the link changes during the scan, the folder is scanned again."""
    for model in ("a", "b", "c"):
        put(tmp_path / "41", f"{model}/1")
        put(tmp_path / "42", f"{model}/2")
    models = tmp_path / "models"
    relink(models, tmp_path / "41")
    kinds = Meanwhile(("model.onnx",))
    kinds.do = lambda: relink(models, tmp_path / "42")
    seen = scan(models, Snapshot(), quiet=0, kinds=kinds)
    assert versions(seen) == {"a": [2], "b": [2], "c": [2]}
    assert seen.problems == ()


def test_what_is_gone_since_it_was_listed_is_no_problem(models: Path) -> None:
    """A version or a model's whole folder may be deleted during the scan."""
    for where in ("a/1", "a/2", "b/1"):
        put(models, where)

    def remove() -> None:
        shutil.rmtree(models / "a/2")
        shutil.rmtree(models / "b")

    kinds = Meanwhile(("model.onnx",))
    kinds.do = remove
    seen = scan(models, Snapshot(), quiet=0, kinds=kinds)
    assert versions(seen) == {"a": [1]}
    assert seen.problems == ()


def test_loops_end(models: Path) -> None:
    """A link to itself is a problem; one to a folder around it is walked once."""
    put(models, "iris/1")
    (models / "iris" / "1" / "around").symlink_to("..")
    (models / "iris" / "2").symlink_to("2")
    (models / "loop").symlink_to("loop")
    (models / "dead").symlink_to("nowhere")
    found = now(models)
    assert versions(found) == {"iris": [1]}
    assert set(told(found)) == {"dead", "iris/2", "loop"}
    assert told(found)["dead"] == "is a broken link"


def test_link_to_a_whole_disk_is_not_walked(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of very many files is refused, not counted to the end."""
    monkeypatch.setattr(version_files, "MAX_FILES", 3)
    path = put(models, "iris/1")
    for number in range(3):
        (path.parent / str(number)).touch()
    assert "more than 3 files" in told(now(models))["iris/1"]


def test_what_may_not_be_read_is_told() -> None:
    """Permissions are the operator's to fix."""
    with TemporaryDirectory() as folder:  # pytest's own are closed to everybody else
        models = Path(folder)
        path = put(models, "iris/1")
        path.chmod(0)
        for opened in (models, models / "iris", models / "iris/1"):
            opened.chmod(0o755)
        assert "cannot be read" in as_nobody(lambda: told(now(models))["iris/1"])


def as_nobody(look: Callable[[], str]) -> str:
    """Return the result of `look` for a user without privileges; root forks to become one."""
    if os.geteuid() != 0:
        return look()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            os.write(writer, look().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, encoding="utf-8") as seen:
        return seen.read()


def test_version_that_is_gone_is_gone(models: Path) -> None:
    """Removing a folder takes the version away at once."""
    put(models, "iris/1")
    put(models, "iris/2")
    before = now(models)
    shutil.rmtree(models / "iris" / "2")
    assert versions(now(models, before)) == {"iris": [1]}


def test_a_thousand_versions_are_looked_at_without_reading_them(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking again, every two seconds, opens no config that has not changed."""
    for number in range(1000):
        put(models, f"m{number % 50}/{number // 50 + 1}")
    for model in models.iterdir():
        (model / "config.yaml").write_text("versions: all\n")
    clock = SimpleNamespace(time=lambda: time.time() + 7200, monotonic=time.monotonic)
    monkeypatch.setattr(snapshot, "time", clock)  # it is long ago
    before = now(models)

    def read(folder: Path) -> ModelConfig:
        raise AssertionError(f"{folder} was read again")

    monkeypatch.setattr(snapshot, "load_model_config", read)
    assert now(models, before) == before


def test_models_stay_while_their_folder_is_away(models: Path) -> None:
    """It may be moved, unmounted, or replaced by a file: that proves nothing about its contents."""
    put(models, "iris/1")
    put(models, "digits/1")
    before = now(models)
    away = models.rename(models.with_name("away"))
    meanwhile = now(models, before)
    assert meanwhile.models == before.models
    assert "folder not found; the models found before stay (digits, iris)" in str(
        meanwhile.problems[0]
    )
    away.rename(models)
    assert now(models, meanwhile) == before


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == Path().stat().st_dev,
    reason="needs two file systems",
)
def test_models_stay_where_their_disk_was_unmounted(models: Path, tmp_path: Path) -> None:
    """An empty mount point is on the file system around it, and stays empty for hours."""
    put(models, "iris/1")
    link = tmp_path / "link"
    link.symlink_to(models)
    before = now(link)
    with TemporaryDirectory(dir="/dev/shm") as other:
        link.unlink()
        link.symlink_to(other)
        for _ in range(3):
            meanwhile = now(link, before)
            assert meanwhile.models == before.models
            assert "another file system" in str(meanwhile.problems[0])
        put(Path(other), "digits/1")
        assert versions(now(link, meanwhile)) == {"digits": [1]}


def test_models_stay_while_files_cannot_be_opened(models: Path) -> None:
    """A process out of descriptors cannot list a folder."""
    put(models, "iris/1")
    before = now(models)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(models, os.O_RDONLY)
    os.close(spare)  # the next descriptor is this one
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        meanwhile = now(models, before)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert meanwhile.models == before.models
    assert "Too many open files" in str(meanwhile.problems[0])


def test_a_version_that_cannot_serve_any_more_stays(models: Path) -> None:
    """Truncated, or a link to what is not there yet: what is loaded is better than nothing."""
    path = put(models, "iris/1")
    before = now(models)
    path.write_bytes(b"")
    truncated = now(models, before)
    assert truncated.models == before.models
    assert told(truncated) == {"iris/1": "its model.onnx is empty; what was loaded before stays"}
    path.unlink()
    path.symlink_to("nowhere")
    assert now(models, truncated).models == before.models
    shutil.rmtree(path.parent)
    path.parent.symlink_to("nowhere")
    assert now(models, truncated).models == before.models


def test_a_version_that_was_just_removed_stays_for_a_moment(models: Path) -> None:
    """`mv` of one folder away and of another into its place leaves a gap that a scan may see."""
    put(models, "iris/1")
    put(models, "digits/1")
    before = now(models)
    shutil.rmtree(models / "iris")
    gap = scan(models, before, quiet=3600)
    assert gap.models == before.models
    (missed,) = gap.settling.values()
    long_enough = time.monotonic() - missed.since
    assert versions(scan(models, gap, quiet=long_enough)) == {"digits": [1]}


def test_an_empty_folder_must_stay_empty_to_be_believed(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All models at once are given up later than one, and not because of one look."""
    monkeypatch.setattr(snapshot, "EMPTY_SECONDS", 0.3)
    put(models, "iris/1")
    seen = now(models)
    shutil.rmtree(models / "iris")
    since = time.monotonic()
    seen = scan(models, seen, quiet=0.01)
    assert versions(seen) == {"iris": [1]}
    assert "has no model, and had 1" in str(seen.problems[0])
    while versions(seen):
        seen = scan(models, seen, quiet=0.01)
    assert time.monotonic() - since >= 0.3


def test_a_model_whose_versions_are_gone_is_still_there(models: Path) -> None:
    """Its folder is what makes it one: only removing that takes it out."""
    put(models, "iris/1")
    put(models, "digits/1")
    before = now(models)
    shutil.rmtree(models / "iris/1")
    after = now(models, before)
    assert versions(after) == {"digits": [1], "iris": []}
    assert "has no version" in told(after)["iris"]
    shutil.rmtree(models / "iris")
    assert versions(now(models, after)) == {"digits": [1]}


def test_modules_beside_a_config_with_a_transform_count(models: Path) -> None:
    """A change counts after the last write; tests, and modules without a transform, do not."""
    put(models, "m/1")
    module, config = models / "m/transform.py", models / "m/config.yaml"
    module.write_text("one")
    first = now(models)
    assert first.models["m"].code == ""
    config.write_text("transform: transform:Transform\n")
    second = now(models, first)
    assert second.models["m"].code
    (models / "m/test_transform.py").write_text("a test")
    (models / "m/notes.txt").write_text("a note")
    assert now(models, second).models["m"].code == second.models["m"].code
    module.write_text("another")
    assert scan(models, second, quiet=3600).models["m"].code == second.models["m"].code
    assert now(models, second).models["m"].code != second.models["m"].code
