"""The memory that runs of a session may take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cohort.errors import InferenceFailed
from cohort.session import Opener, Provider, Session, give_back_arenas
from cohort.session.failures import run_failure
from cohort.session.memory import limit_provider
from tests import onnx_models

Limited = Callable[[int | None], Session]


@pytest.fixture
def limited(tmp_path: Path) -> Limited:
    """Opens a model that makes as many ones as its input asks for, with a limit in MB."""
    path = onnx_models.save(onnx_models.fill(), tmp_path / "1" / "model.onnx")
    chain = (Provider("cpu"),)

    def open_it(megabytes: int | None) -> Session:
        return Opener(path, chain=chain, memory_limit_mb=megabytes).open()

    return open_it


def resident() -> int:
    """Return the megabytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def ones(session: Session, megabytes: int) -> int:
    """Ask for that many MB of ones; how many came."""
    return int(session.run({"n": np.array([[megabytes << 18]])}, session.control())[0].nbytes >> 20)


def test_a_run_over_the_limit_fails_by_itself(limited: Limited) -> None:
    """The error names the limit; the next run takes what it needs."""
    session = limited(64)
    assert ones(session, 40) == 40
    with pytest.raises(InferenceFailed, match=r"64 MB \(memory_limit_mb\)") as failed:
        ones(session, 80)
    assert failed.value.blames_input  # others of its batch may fit
    assert ones(session, 40) == 40


def test_each_session_has_its_own_limit(limited: Limited) -> None:
    """This holds whatever was opened since; one without a limit is not limited."""
    small, large, free = limited(16), limited(128), limited(None)
    assert ones(large, 60) == 60
    assert ones(free, 200) == 200
    with pytest.raises(InferenceFailed):
        ones(small, 60)
    with pytest.raises(InferenceFailed):
        ones(large, 200)
    assert ones(small, 8) == 8


def test_memory_of_an_unpredictable_run_is_given_back(limited: Limited) -> None:
    """The next run of the model frees what a large one took."""
    session = limited(None)
    session.run({"n": np.array([[1]])}, session.control())
    before = resident()
    ones(session, 400)
    session.run({"n": np.array([[1]])}, session.control())
    assert resident() < before + 200


def test_errors_without_a_limit_do_not_name_one() -> None:
    """A machine without memory is another failure than a limit."""
    error = RuntimeError("Available memory of 1 is smaller than requested bytes of 2")
    assert "memory_limit_mb" not in str(run_failure(error))
    assert "memory_limit_mb" in str(run_failure(error, 64))


def test_cuda_gets_the_limit_unless_the_operator_gave_one() -> None:
    """The limit is CUDA's own option, in bytes."""
    assert limit_provider(Provider("cuda"), 64) == {"gpu_mem_limit": str(64 << 20)}
    assert limit_provider(Provider("cuda", {"gpu_mem_limit": 5}), 64) == {"gpu_mem_limit": "5"}
    assert limit_provider(Provider("cuda"), None) == {}
    assert limit_provider(Provider("cpu"), 64) == {}


def test_memory_of_outputs_that_are_gone_is_given_back(limited: Limited) -> None:
    """It is returned without another run, though the outputs outlived their run."""
    session = limited(None)
    session.run({"n": np.array([[1]])}, session.control())
    before = resident()
    assert ones(session, 400) == 400
    give_back_arenas()
    assert resident() < before + 200
    session.close()
    give_back_arenas()  # no matter who is closed
