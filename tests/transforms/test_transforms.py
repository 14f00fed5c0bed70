"""A class of Python around a model, over every API, and its isolation from others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.waiting import PATIENCE, wait_until

ROWS = [[0.5, -1.25, 3.0, 0.001], [1.0, 2.0, 3.0, 4.0]]

CODE = '''
import os
import time

import numpy as np


class Words:
    """Texts of numbers go in, and words come out."""

    def before(self, request):
        text = request.inputs["text"]
        match text[0]:
            case "crash":
                os.abort()
            case "loop":
                while True:
                    pass
            case "nonsense":
                return 7
            case "wrong":
                return {"x": [[1.0, 2.0]]}
            case "leak":
                return {"x": [bytearray(1 << 44)]}
        try:
            return {"x": [[float(one) for one in row.split()] for row in text]}
        except ValueError:
            raise ValueError("send four numbers, as '1 2 3 4'") from None

    async def after(self, outputs):
        best = np.argmax(outputs["y"], axis=1)
        return {"word": [f"class {one}" for one in best], "best": best, "scores": outputs["y"]}


class Doubled:
    def before(self, request):
        return {"x": request["x"] * 2}


class Counted:
    """Says how many rows it got at once, and takes long for large numbers."""

    outputs = {"rows": ("INT64", ["N"])}

    def after(self, outputs):
        if np.abs(outputs["y"]).max() > 1e6:
            time.sleep(1)
        return {"rows": np.full(len(outputs["y"]), len(outputs["y"]))}


class Centred:
    def before(self, request):
        return {"x": request["x"] - request["x"].mean(axis=0)}


class Slow:
    inputs = {"seconds": ("FP64", ["N"])}
    outputs = {"process": ("INT64", ["N"])}

    def before(self, request):
        time.sleep(request["seconds"][0])
        return {"x": [[1.0, 2.0, 3.0, 4.0]]}

    def after(self, outputs):
        return {"process": [os.getpid()]}


class Saying:
    inputs = {"text": ("BYTES", ["N"])}

    def before(self, request):
        match request["text"][0]:
            case "surrogate":
                raise ValueError("a" + chr(0xD800))
            case "long":
                raise ValueError("a" * 1_000_000)
            case "much":
                return {"x": np.zeros((1 << 21, 4), np.float32)}
            case "twice":
                copy = os.fork()
                if copy:
                    os.waitpid(copy, 0)
                return {"x": np.full((1, 4), 1 if copy else 7, np.float32)}
            case "flood":
                for file in range(3, 64):
                    try:
                        os.write(file, b"x" * (1 << 27))
                    except OSError:
                        pass
            case "plain":
                return {"x": np.ones((1, 4), np.float32)}
            case "datatype":
                return {"x": np.ones((1, 4), np.longdouble)}


class Odd:
    def after(self, outputs):
        if outputs["y"].any():
            return {"other": outputs["y"]}
        return {"y": outputs["y"]}
'''


PIPELINE = """\
steps:
  first: {model: plain, inputs: {x: x}}
  second: {model: centred, inputs: {x: x}, when: max(first.y) < 1}
outputs: {y: {from: [second.y, first.y]}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Three transforms, and a model without one."""
    folder = tmp_path_factory.mktemp("transforms")
    for name in ("words", "doubled", "odd", "counted", "centred", "slow", "saying", "plain"):
        onnx_models.save(onnx_models.mlp(), folder / "models" / name / "1/model.onnx")
        if name != "plain":
            (folder / "models" / name / f"{name}_code.py").write_text(CODE)
            config = f"transform: {name}_code:{name.title()}\ntimeout_ms: 3000\n"
            config += "max_output_mb: 16\n" if name == "saying" else ""
            (folder / "models" / name / "config.yaml").write_text(config)
    (folder / "models/pipeline").mkdir()
    (folder / "models/pipeline/pipeline.yaml").write_text(PIPELINE)
    with cohort(folder / "models", folder, grpc_port=free_port(), model_code="allow") as started:
        yield started


def ask(server: Cohort, model: str, body: object) -> httpx.Response:
    return httpx.post(f"{server.url}/models/{model}/predict", json=body, timeout=PATIENCE)


def words(server: Cohort, *texts: str) -> httpx.Response:
    return ask(server, "words", {"inputs": {"text": list(texts)}})


def scores(rows: Any) -> Any:
    path = Path(_saved)
    session = onnxruntime.InferenceSession(str(path))
    return session.run(None, {"x": np.asarray(rows, np.float32)})[0]


_saved = ""


@pytest.fixture(scope="module", autouse=True)
def _model(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _saved  # noqa: PLW0603 - one model for all
    _saved = str(onnx_models.save(onnx_models.mlp(), tmp_path_factory.mktemp("m") / "model.onnx"))


def texts(rows: Any) -> list[str]:
    return [" ".join(map(str, row)) for row in rows]


def test_what_is_sent_and_answered_is_the_class_own(server: Cohort) -> None:
    """Inputs that the model does not have, and outputs of other names and kinds."""
    answer = words(server, *texts(ROWS))
    assert answer.status_code == 200, answer.text
    outputs, wanted = answer.json()["outputs"], scores(ROWS)
    np.testing.assert_allclose(outputs["scores"], wanted, rtol=1e-5)
    assert outputs["best"] == wanted.argmax(axis=1).tolist()
    assert outputs["word"] == [f"class {one}" for one in outputs["best"]]


def test_inputs_of_the_model_are_what_the_class_gets(server: Cohort) -> None:
    """The class gets them by name, or one without a name; also over V2 JSON and gRPC."""
    twice = scores(np.array(ROWS, np.float32) * 2)
    named = ask(server, "doubled", {"inputs": {"x": ROWS}}).json()["outputs"]["y"]
    alone = ask(server, "doubled", {"input": ROWS}).json()["prediction"]
    v2 = httpx.post(
        f"{server.url}/v2/models/doubled/infer",
        json={"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": ROWS}]},
        timeout=PATIENCE,
    ).json()["outputs"][0]
    for one in (named, alone, np.reshape(v2["data"], v2["shape"])):
        np.testing.assert_allclose(one, twice, rtol=1e-5)
    sent = InferInput("x", [2, 4], "FP32")
    sent.set_data_from_numpy(np.array(ROWS, np.float32))
    with InferenceServerClient(server.grpc) as client:
        answer = client.infer("doubled", [sent]).as_numpy("y")
    np.testing.assert_allclose(answer, twice, rtol=1e-5)


def test_a_value_error_of_before_is_the_callers_own(server: Cohort) -> None:
    """The status is 400 with its text."""
    answer = words(server, "one two")
    assert answer.status_code == 400
    assert answer.json()["error"] == "send four numbers, as '1 2 3 4'"


@pytest.mark.parametrize(
    ("text", "said"), [("nonsense", "before gave int"), ("wrong", "must have shape")]
)
def test_nonsense_is_the_models_failure(server: Cohort, text: str, said: str) -> None:
    """Status 500, which names the stage and what it gave."""
    answer = words(server, text)
    assert answer.status_code == 500
    assert "before" in answer.json()["error"]
    assert said in answer.json()["error"]


def test_another_answer_than_was_learned_is_refused(server: Cohort) -> None:
    """The error asks to declare the outputs of the class."""
    answer = ask(server, "odd", {"inputs": {"x": ROWS}})
    assert answer.status_code == 500
    assert "declare" in answer.json()["error"]


@pytest.mark.parametrize("text", ["crash", "loop", "leak"])
def test_its_end_is_its_own(server: Cohort, text: str) -> None:
    """The caller gets a 5xx that names the transform; others get their answers all the time."""
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(words, server, text)
        for _ in range(20):
            assert ask(server, "plain", {"inputs": {"x": ROWS}}).status_code == 200
        answer = ending.result(PATIENCE)
    assert answer.status_code in {503, 504, 500}, answer.text
    assert "transform" in answer.json()["error"] or answer.status_code == 504
    wait_until(lambda: words(server, *texts(ROWS)).status_code == 200)


def test_answers_are_each_callers_own(server: Cohort) -> None:
    """Many at once get what they get alone."""
    rows = [[float(one), 1.0, -1.0, 0.5] for one in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda row: words(server, *texts([row])), rows))
    for row, answer in zip(rows, answers, strict=True):
        np.testing.assert_allclose(answer.json()["outputs"]["scores"], scores([row]), rtol=1e-4)


def test_after_gets_one_request_at_a_time(server: Cohort) -> None:
    """This holds without `before` as well, if callers could share runs on the event loop."""
    ask(server, "counted", {"inputs": {"x": ROWS[:1]}})

    def rows(_: int) -> set[int]:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            body = {"inputs": {"x": ROWS[:1]}}
            answers = [client.post("/models/counted/predict", json=body) for _ in range(50)]
        return {answer.json()["outputs"]["rows"][0] for answer in answers}

    with ThreadPoolExecutor(8) as pool:
        assert set.union(*pool.map(rows, range(8))) == {1}


def test_a_slow_after_does_not_hold_the_server_up(server: Cohort) -> None:
    """Other models answer while it works."""
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, server, "counted", {"inputs": {"x": [[1e9, 2.0, 3.0, 4.0]]}})
        answered = 0
        while not slow.done():
            assert ask(server, "plain", {"inputs": {"x": ROWS}}).status_code == 200
            answered += 1
        assert slow.result().status_code == 200
    assert answered > 2


def test_rows_of_a_pipeline_go_through_it_one_by_one(server: Cohort) -> None:
    """The class's use of other rows of a request changes no row's answer."""
    rows = [*ROWS, [-1.0, -2.0, -3.0, -4.0], [0.1, 0.2, 0.1, 0.2]]
    wait_until(lambda: ask(server, "pipeline", {"inputs": {"x": rows}}).status_code == 200)
    together = ask(server, "pipeline", {"inputs": {"x": rows}}).json()["outputs"]["y"]
    alone = [
        ask(server, "pipeline", {"inputs": {"x": [row]}}).json()["outputs"]["y"][0] for row in rows
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_callers_who_wait_less_do_not_end_it(server: Cohort) -> None:
    """They get 504; the process, which others wait for, continues."""

    def process() -> int:
        (number,) = ask(server, "slow", {"inputs": {"seconds": [0.0]}}).json()["outputs"]["process"]
        return int(number)

    before = process()
    v2 = {
        "inputs": [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [0.3]}],
        "parameters": {"timeout": 50_000},
    }
    for _ in range(3):
        answer = httpx.post(f"{server.url}/v2/models/slow/infer", json=v2, timeout=PATIENCE)
        assert answer.status_code == 504, answer.text
    assert process() == before


def test_no_file_is_left_when_the_server_is_killed(server: Cohort) -> None:
    """What is passed to a class has no name any more once its process has it."""
    assert ask(server, "doubled", {"inputs": {"x": ROWS}}).status_code == 200
    opened = [
        str(one.readlink())
        for one in Path(f"/proc/{server.process.pid}/fd").iterdir()
        if one.is_symlink()
    ]
    files = [one for one in opened if "/cohort-" in one]
    assert files
    assert [one for one in files if not one.endswith(" (deleted)")] == []


def test_what_a_value_error_says_can_be_sent(server: Cohort) -> None:
    """Its text is made valid UTF-8, and its length is limited."""
    answer = ask(server, "saying", {"inputs": {"text": ["surrogate"]}})
    assert (answer.status_code, answer.json()["error"]) == (400, "a?")
    answer = ask(server, "saying", {"inputs": {"text": ["long"]}})
    assert answer.status_code == 400
    assert len(answer.content) < 10_000


def test_arrays_that_are_no_tensors_are_the_models_failure(server: Cohort) -> None:
    """The failure is not the caller's, though `before` made the arrays."""
    answer = ask(server, "saying", {"inputs": {"text": ["datatype"]}})
    assert answer.status_code == 500
    assert "before" in answer.json()["error"]


def test_more_than_may_be_answered_is_the_models_failure(server: Cohort) -> None:
    """It is refused before it takes memory that is shared."""
    answer = ask(server, "saying", {"inputs": {"text": ["much"]}})
    assert answer.status_code == 500
    assert (
        f"before gave what cannot be taken: the arrays have more than {16 << 20}"
        in (answer.json()["error"])
    )


def test_a_copy_of_its_process_answers_nobody(server: Cohort) -> None:
    """A fork that comes back from a call ends, and gives neither this caller nor the next one."""
    wanted = scores([[1.0, 1.0, 1.0, 1.0]])
    for text in ("twice", "plain", "twice", "plain"):
        answer = ask(server, "saying", {"inputs": {"text": [text]}})
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["outputs"]["y"], wanted, rtol=1e-5)


def test_what_it_writes_among_answers_ends_it_alone(server: Cohort) -> None:
    """The process is started again, and the next callers get theirs."""
    answer = ask(server, "saying", {"inputs": {"text": ["flood"]}})
    assert answer.status_code == 503
    wait_until(lambda: ask(server, "saying", {"inputs": {"text": ["plain"]}}).status_code == 200)


def test_it_is_in_the_documents(server: Cohort) -> None:
    """The page, OpenAPI and the descriptions work with a model whose inputs are not declared."""
    for path in ("/models/words", "/v2/models/words", "/openapi.json", "/models"):
        answer = server.get(path)
        assert answer.status_code == 200, path
    names = [one["name"] for one in server.get("/v2/models/words").json()["outputs"]]
    assert names == ["word", "best", "scores"]


def test_code_runs_only_where_that_is_allowed(tmp_path: Path) -> None:
    """The reason names the setting; nothing of the module was run."""
    folder = tmp_path / "models/words"
    onnx_models.save(onnx_models.mlp(), folder / "1/model.onnx")
    touched = tmp_path / "touched"
    (folder / "code_.py").write_text(f"open({str(touched)!r}, 'w')\n{CODE}")
    (folder / "config.yaml").write_text("transform: code_:Words\n")
    with cohort(tmp_path / "models", tmp_path, ready=False) as server:
        version = server.wait_for("/models/words").json()
        wait_until(lambda: "MODEL_CODE" in server.get("/models/words").text)
        assert "COHORT_MODEL_CODE=allow" in server.get("/models/words").text, version
    assert not touched.exists()


def test_a_module_that_is_edited_is_read_again(tmp_path: Path) -> None:
    """The server loads the new module; a broken one leaves the last good one serving."""
    folder = tmp_path / "models/words"
    onnx_models.save(onnx_models.mlp(), folder / "1/model.onnx")
    module = folder / "code_.py"
    text = "class Edited:\n    def after(self, outputs):\n        return {'number': [%s]}\n"

    def answered(server: Cohort) -> object:
        return ask(server, "words", {"inputs": {"x": ROWS}}).json()["outputs"]["number"]

    module.write_text(text % 1)
    (folder / "config.yaml").write_text("transform: code_:Edited\n")
    with cohort(tmp_path / "models", tmp_path, model_code="allow") as server:
        assert answered(server) == [1]
        module.write_text(text % 2)
        wait_until(lambda: answered(server) == [2])
        module.write_text("class Edited:\n")
        wait_until(lambda: "cannot be loaded" in server.get("/models/words").text)
        assert answered(server) == [2]
        module.write_text(text % 3)
        wait_until(lambda: answered(server) == [3])


def test_its_process_ends_with_the_server(tmp_path: Path) -> None:
    """It ends even if the server is killed."""
    folder = tmp_path / "models/words"
    onnx_models.save(onnx_models.mlp(), folder / "1/model.onnx")
    pid = tmp_path / "pid"
    code = f"import os; open({str(pid)!r}, 'w').write(str(os.getpid()))\n{CODE}"
    (folder / "code_.py").write_text(code)
    (folder / "config.yaml").write_text("transform: code_:Words\n")
    with cohort(tmp_path / "models", tmp_path, model_code="allow") as server:
        child = int(pid.read_text())
        os.kill(child, 0)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE)
        wait_until(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
