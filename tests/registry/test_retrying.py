"""Loads that are tried again, their times, and the reasons of the others."""

from __future__ import annotations

import errno

import pytest

from cohort.errors import InferenceFailed, LoadFailed, NotReady
from cohort.http.errors import headers_of
from cohort.onnx_engine import VersionOpener, factory
from cohort.onnx_engine.preparation import PreparedVersion, prepare_version
from cohort.registry import Source, State, VersionFailed, retrying
from cohort.registry.loading import LoadTimedOut
from cohort.registry.retrying import MAX_WAIT_SECONDS, is_transient, next_try
from cohort.rpc.errors import metadata_of
from tests.registry.on_disk import RegistryOnDisk
from tests.waiting import until

READY, UNAVAILABLE = State.READY, State.UNAVAILABLE


def caused(error: Exception, cause: BaseException) -> Exception:
    """Return the error as raised from its cause."""
    error.__cause__ = cause
    return error


UNREADABLE = LoadFailed("model.onnx cannot be read")
BAD_ALLOC = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception caught: std::bad_alloc"
CUDA_OUT = "CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; expr=cudaMalloc((void**)&p, size)"
CUDA_BUSY = "CUDA failure 46: all CUDA-capable devices are busy or unavailable ; GPU=0"
NO_NODE = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Foo(1)"
NO_THREAD = "can't start new thread"


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        pytest.param(MemoryError(), True, id="memory"),
        pytest.param(caused(LoadFailed("…"), RuntimeError(BAD_ALLOC)), True, id="bad_alloc"),
        pytest.param(caused(UNREADABLE, OSError(errno.EACCES, "")), True, id="permission"),
        pytest.param(caused(LoadFailed(""), OSError(errno.EIO, "")), True, id="input/output"),
        pytest.param(caused(LoadFailed(""), OSError(errno.ESTALE, "")), True, id="stale handle"),
        pytest.param(OSError(errno.EMFILE, ""), True, id="descriptors"),
        pytest.param(RuntimeError(NO_THREAD), True, id="threads"),
        pytest.param(caused(LoadFailed(""), OSError(errno.EAGAIN, "")), True, id="processes"),
        pytest.param(caused(LoadFailed("…"), RuntimeError(CUDA_OUT)), True, id="device memory"),
        pytest.param(caused(LoadFailed("…"), RuntimeError(CUDA_BUSY)), True, id="device busy"),
        pytest.param(
            caused(LoadFailed("…"), InferenceFailed("…", blames_input=False)), True, id="device"
        ),
        pytest.param(LoadFailed("killed by the system", transient=True), True, id="said so"),
        pytest.param(LoadFailed("it crashed ONNX Runtime, out of memory"), False, id="content"),
        pytest.param(caused(LoadFailed("…"), RuntimeError(NO_NODE)), False, id="no such node"),
        pytest.param(caused(LoadFailed("…"), ValueError("cut")), False, id="truncated"),
        pytest.param(caused(LoadFailed("…"), InferenceFailed("…")), False, id="memory_limit_mb"),
        pytest.param(OSError(errno.ENOENT, ""), True, id="moved away for a moment"),
        pytest.param(KeyError("a bug"), False, id="a bug"),
    ],
)
def test_what_was_lacking_is_told_from_what_is_wrong(error: Exception, transient: bool) -> None:
    """The causes of an error count, not the words of a sentence."""
    assert is_transient(error) == transient


def test_each_wait_is_longer_up_to_a_bound() -> None:
    """A wait is drawn between half of it and all."""
    for luck, share in ((0.0, 0.5), (1.0, 1.0)):
        waits = [next_try(MemoryError(), failures, luck) for failures in (1, 2, 3, 7, 10_000)]
        assert waits == [share * one for one in (1, 2, 4, MAX_WAIT_SECONDS, MAX_WAIT_SECONDS)]


def test_a_load_that_timed_out_is_tried_twice() -> None:
    """A busy machine passes; a model that never ends would take a core for good."""
    assert next_try(LoadTimedOut("…"), 1, 1) == MAX_WAIT_SECONDS
    assert next_try(LoadTimedOut("…"), 2, 0) is None


# -- the registry


class Lacking:
    """Loads `m` only after a number of failures."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures, self.error = failures, error
        self.tries = 0

    def __call__(self, source: Source, opener: VersionOpener, _: object) -> PreparedVersion:
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error
        return prepare_version(source, opener)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_WAIT_SECONDS", 0.01)


@pytest.mark.usefixtures("soon")
async def test_a_version_comes_up_once_what_it_lacked_is_there(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure is reported with the time of the next try, which runs without a request."""
    lacking = Lacking(2, OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(factory, "prepare_version", lacking)
    disk.put(1)
    await disk.follow()
    await until(lambda: disk.states("m") == {1: READY})
    failed = [event for event in disk.events if isinstance(event, VersionFailed)]
    assert len(failed) == 2
    assert all(event.retry_in is not None for event in failed)


@pytest.mark.usefixtures("soon")
async def test_files_that_could_not_replace_others_are_tried_again(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former ones serve during that time."""
    disk.put(1)
    await disk.reconcile()
    before = disk.registry.find("m").engine
    monkeypatch.setattr(factory, "prepare_version", Lacking(1, MemoryError()))
    (disk.models / "m/1/notes.txt").write_text("something changed")
    await disk.reconcile()
    assert disk.registry.find("m").engine is before
    await until(lambda: disk.registry.find("m").engine is not before)
    assert disk.registry.version("m", "1").reason == ""


@pytest.mark.usefixtures("soon")
async def test_a_version_comes_up_though_its_folder_was_gone_for_a_moment(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back with the same files; their stamp does not show that they would load now."""
    away = disk.models.with_name("away")

    def load(source: Source, opener: VersionOpener, _: object) -> PreparedVersion:
        folder = source.path.parent.parent
        monkeypatch.setattr(factory, "prepare_version", prepare_version)
        folder.rename(away)
        try:
            return prepare_version(source, opener)
        finally:
            away.rename(folder)

    monkeypatch.setattr(factory, "prepare_version", load)
    disk.put(1)
    await disk.follow()
    await until(lambda: disk.states("m") == {1: READY})
    assert [event for event in disk.events if isinstance(event, VersionFailed)]


def refusal(disk: RegistryOnDisk) -> NotReady:
    with pytest.raises(NotReady) as refused:
        disk.registry.find("m")
    return refused.value


async def test_callers_are_told_when_a_version_is_tried_again(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is in seconds over HTTP, in milliseconds over gRPC."""
    monkeypatch.setattr(retrying, "FIRST_WAIT_SECONDS", 40.0)
    monkeypatch.setattr(factory, "prepare_version", Lacking(1, MemoryError()))
    disk.put(1)
    await disk.reconcile()
    refused = refusal(disk)
    assert refused.retry_after is not None
    assert 15 < refused.retry_after <= 40
    assert 15 <= int(headers_of(refused)["retry-after"]) <= 40
    assert 15_000 < int(dict(metadata_of(refused, "id"))["grpc-retry-pushback-ms"]) <= 40_000
    disk.registry.close()


async def test_callers_of_a_broken_model_are_not_told_to_come_again(disk: RegistryOnDisk) -> None:
    """The same holds for an unloaded model; its files or the operator bring it back."""
    disk.put(1)
    (disk.models / "m/1/model.onnx").write_bytes(b"broken")
    await disk.reconcile()
    assert disk.registry.version("m", "1").retry_at is None
    refused = refusal(disk)
    assert refused.retry_after is None
    assert headers_of(refused) == {}
    assert "grpc-retry-pushback-ms" not in dict(metadata_of(refused, "id"))
    disk.registry.unload_model("m")
    assert (refusal(disk)).retry_after is None


@pytest.mark.parametrize("act", ["unload", "remove"])
async def test_what_is_not_wanted_is_not_tried_again(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """A version that is no longer wanted is not retried."""
    lacking = Lacking(1, MemoryError())
    monkeypatch.setattr(factory, "prepare_version", lacking)
    disk.put(1)
    await disk.reconcile()
    if act == "unload":
        disk.registry.unload_model("m")
    else:
        (disk.models / "m/1/model.onnx").unlink()
        (disk.models / "m/1").rmdir()
        (disk.models / "m").rmdir()
        await disk.reconcile()
    assert not disk.registry._retries._failures
    assert lacking.tries == 1


async def test_an_operator_need_not_wait_for_the_next_try(
    disk: RegistryOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manual reload retries a failed load at once, and resets the delays."""
    monkeypatch.setattr(factory, "prepare_version", Lacking(1, MemoryError()))
    disk.put(1)
    await disk.reconcile()
    disk.registry.reload_model("m")
    await disk.reconcile()
    assert disk.states("m") == {1: READY}
    assert not disk.registry._retries._failures
