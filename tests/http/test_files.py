"""Files as inputs of the simple API: images, .npy arrays, forms; and base64 in JSON."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import PATIENCE

NPY = "application/x-npy"

PIXELS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels [height, width, 3] as a PNG image."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(lines)),
            chunk(b"IEND", b""),
        ]
    )


IMAGE = png(PIXELS)
OTHER = png(PIXELS[::-1])


def npy(array: NDArray[Any]) -> bytes:
    """Return the bytes that numpy.save writes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A process with models that take files, and with some that do not."""
    folder = tmp_path_factory.mktemp("files")
    for name, model in {
        "image": onnx_models.decoded_image(),
        "known": onnx_models.known_bytes(IMAGE, OTHER),
        "mlp": onnx_models.mlp(),
        "pair": onnx_models.two_inputs(),
        "same": onnx_models.identity("FP32", ("N", 4)),
        "text": onnx_models.identity("BYTES", ("N",)),
    }.items():
        onnx_models.save(model, folder / "models" / name / "1/model.onnx")
    (folder / "models/image/config.yaml").write_text(
        json.dumps({"session": {"custom_op_libraries": ["extensions"]}})
    )
    with cohort(folder / "models", folder, max_body_mb=4) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Cohort) -> Iterator[httpx.Client]:
    """One client for all tests, its connections kept between them."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


def send(
    client: httpx.Client, model: str, body: bytes, media: str, query: str = "", **headers: str
) -> httpx.Response:
    """Predict with `body` as a file."""
    sent = {"content-type": media, **{name.replace("_", "-"): one for name, one in headers.items()}}
    return client.post(f"/models/{model}/predict{query}", content=body, headers=sent)


def prediction(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["prediction"]


def refusal(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    said: str = answer.json()["error"]
    return said


# --- Images


def test_an_image_reaches_a_model_that_decodes_it(client: httpx.Client) -> None:
    """The body is the file; onnxruntime-extensions decodes it, in blue, green, red."""
    assert prediction(send(client, "image", IMAGE, "image/png")) == PIXELS[..., ::-1].tolist()


def test_its_decoder_is_warned_of(server: Cohort) -> None:
    """A warning at load names the reports of its crashes."""
    (line,) = [line for line in server.logged.splitlines() if "callers can end" in line]
    assert json.loads(line)["model"] == "image"
    assert "DecodeImage" in line
    assert "#1094" in line


def test_an_image_in_base64_reaches_it_too(client: httpx.Client) -> None:
    """TensorFlow Serving's clients write bytes in JSON so."""
    sent = {"input": {"b64": b64encode(IMAGE).decode()}}
    answer = client.post("/models/image/predict", json=sent)
    assert prediction(answer) == PIXELS[..., ::-1].tolist()


@pytest.mark.parametrize("media", ["image/png", "application/octet-stream", "audio/wav", "x/y"])
def test_a_body_is_one_element_of_bytes(client: httpx.Client, media: str) -> None:
    """The model gets the bytes as they were sent, for any type of file."""
    assert prediction(send(client, "known", IMAGE, media)) == [True]
    assert prediction(send(client, "known", IMAGE + b"\0", media)) == [False]


@pytest.mark.parametrize("path", ["", "/versions/1"])
def test_a_version_may_be_named(client: httpx.Client, path: str) -> None:
    """The path names it, as for JSON."""
    answer = client.post(
        f"/models/known{path}/predict", content=IMAGE, headers={"content-type": "image/png"}
    )
    assert prediction(answer) == [True]


def test_the_query_says_what_a_file_cannot(client: httpx.Client) -> None:
    """It has the model, the version, the outputs, an id and a limit."""
    answer = client.post(
        "/predict?model=known&version=1&id=a1&outputs=y&timeout_ms=600000",
        content=IMAGE,
        headers={"content-type": "image/png"},
    )
    assert prediction(answer) == [True]
    assert answer.json()["id"] == "a1"
    for query, says in {
        "?version=7": "version '7'",
        "?outputs=z": "output 'z' not found",
        "?timeout_ms=x": "must be a number, got 'x'",
        "?timeout_ms=-1": "must be > 0",
        "?model=mlp": "the query names model 'mlp'",
    }.items():
        answer = send(client, "known", IMAGE, "image/png", query)
        assert answer.status_code in {400, 404}
        assert says in answer.json()["error"]


def test_the_query_holds_for_json_too(client: httpx.Client) -> None:
    """The query must not contradict the body."""
    body = {"inputs": {"x": ROWS.tolist()}}
    answer = client.post("/predict?model=same", json=body)
    assert answer.json()["outputs"] == {"y": ROWS.tolist()}
    said = refusal(client.post("/predict?model=same", json={"model": "mlp", **body}))
    assert said == "the query names model 'same' but the path or body names 'mlp'"


@pytest.mark.parametrize("body", [b"", b"a", b"\xff\0"])
def test_any_bytes_are_taken(client: httpx.Client, body: bytes) -> None:
    """They may be empty, text, or binary with a zero at the end."""
    assert prediction(send(client, "known", body, "image/png")) == [False]


def test_others_say_what_they_take_and_how_to_send_it(client: httpx.Client) -> None:
    """An image sent to a model of numbers is refused so."""
    said = refusal(send(client, "mlp", IMAGE, "image/png"), 415)
    assert said.startswith("input 'x' must be FP32 [N, 4], not a file of 'image/png'. Send JSON")
    for way in (NPY, "Inference-Header-Content-Length: 0", "decode"):
        assert way in said


def test_one_file_does_not_reach_several_inputs(client: httpx.Client) -> None:
    """The error names the way to send them."""
    said = refusal(send(client, "pair", npy(ROWS), NPY))
    assert "'a', 'b': send multipart/form-data" in said


# --- Bytes that are not text, by the other APIs


def test_every_api_takes_bytes_that_are_no_text(client: httpx.Client) -> None:
    """Base64 in JSON, V1's rows and V2's binary tensors carry them, also two of one length."""
    text = {"b64": b64encode(IMAGE).decode()}
    assert len(IMAGE) == len(OTHER)
    simple = client.post("/models/known/predict", json={"input": [text, text]})
    assert prediction(simple) == [True, True]
    rows = client.post("/v1/models/known:predict", json={"instances": [text]})
    assert rows.json() == {"predictions": [True]}
    data = b"".join(len(one).to_bytes(4, "little") + one for one in (IMAGE, OTHER))
    tensor = {
        "name": "x",
        "datatype": "BYTES",
        "shape": [2],
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    sent = {"inference-header-content-length": str(len(head))}
    v2 = client.post("/v2/models/known/infer", content=head + data, headers=sent)
    assert v2.json()["outputs"][0]["data"] == [True, True]


def test_bytes_of_two_lengths_are_sent_one_by_one(client: httpx.Client) -> None:
    """The runtime cannot hold them in one array, and the error states what to do."""
    rows = [{"b64": b64encode(one).decode()} for one in (IMAGE, IMAGE + b"\0")]
    said = refusal(client.post("/models/known/predict", json={"input": rows}))
    assert "send each in a separate request" in said


def test_bytes_that_a_model_gives_back_must_be_text(client: httpx.Client) -> None:
    """The runtime returns nothing else; the error states that the output is at fault."""
    assert "output" in refusal(send(client, "text", b"\xff", "image/png"))
    assert prediction(send(client, "text", "žluť".encode(), "image/png")) == ["žluť"]


# --- Arrays as numpy saves them


@pytest.mark.parametrize(
    "array",
    [ROWS, np.asfortranarray(ROWS), ROWS.astype(">f4"), ROWS[:0], ROWS.astype(">f4").T.copy().T],
    ids=["plain", "fortran", "big-endian", "no rows", "both"],
)
def test_a_saved_array_is_an_input(client: httpx.Client, array: NDArray[Any]) -> None:
    """Any byte order and memory order is read."""
    assert prediction(send(client, "same", npy(array), NPY)) == array.tolist()


def test_a_large_array_is_read_beside_the_loop(client: httpx.Client) -> None:
    """A large array is read on a thread, with the same numbers."""
    large = np.asfortranarray(np.arange(160_000, dtype=">f4").reshape(-1, 4))
    answer = send(client, "same", npy(large), NPY, accept=NPY)
    assert np.array_equal(np.load(io.BytesIO(answer.content)), large)


def test_text_may_be_saved_too(client: httpx.Client) -> None:
    """numpy's strings and bytes are read."""
    for words in (np.array(["cat", "žluť", ""]), np.array([b"cat", b"", b"a b"])):
        expected = [one if isinstance(one, str) else one.decode() for one in words.tolist()]
        assert prediction(send(client, "text", npy(words), NPY)) == expected


def test_an_array_is_answered_by_one_where_asked(client: httpx.Client) -> None:
    """JSON requests get one as well; the version is in a header."""
    for body, media in ((npy(ROWS), NPY), (json.dumps({"input": ROWS.tolist()}).encode(), "")):
        for _ in range(3):  # the first is not coalesced
            answer = send(client, "same", body, media, accept=NPY)
            assert answer.headers["content-type"] == NPY
            assert answer.headers["x-model-version"] == "1"
            assert np.array_equal(np.load(io.BytesIO(answer.content)), ROWS)


def test_only_one_output_of_numbers_is_answered_so(client: httpx.Client) -> None:
    """A response in .npy has one output of numbers; a model with several needs `?outputs=`."""
    files = {name: (f"{name}.npy", npy(ROWS[:, :2])) for name in ("a", "b")}
    asked = {"accept": NPY}
    said = refusal(client.post("/models/pair/predict", files=files, headers=asked))
    assert "returns one output, not 'sum', 'difference'; choose one, such as ?outputs=sum" in said
    answer = client.post("/models/pair/predict?outputs=sum", files=files, headers=asked)
    assert np.array_equal(np.load(io.BytesIO(answer.content)), ROWS[:, :2] * 2)
    assert "is BYTES" in refusal(send(client, "text", b"a", "image/png", accept=NPY))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            npy(ROWS.astype("f8")),
            "input 'x' must be FP32, got FP64; save it with .astype('float32')",
        ),
        (npy(ROWS[:, :3]), "must have shape [N, 4], got [2, 3]"),
        (npy(np.array([{}], object)), "pickled objects, which are never loaded"),
        (npy(np.zeros(2, [("a", "f4"), ("b", "f4")])), "has fields (a structured array)"),
        (npy(np.zeros(2, "M8[s]")), "is of '<M8[s]', which no input can be"),
        (npy(ROWS)[:-1], "is 32 bytes, but 31 follow"),
        (npy(ROWS) + b"\0", "is 32 bytes, but 33 follow"),
        (b"{}", "does not begin as numpy.save does"),
    ],
)
def test_an_array_that_does_not_fit_is_told(client: httpx.Client, body: bytes, says: str) -> None:
    """The error names its datatype, shape, size or kind."""
    assert says in refusal(send(client, "same", body, NPY))


# --- Forms


def form(client: httpx.Client, model: str, files: Sequence[tuple[str, Any]]) -> httpx.Response:
    """Predict with the parts of a form."""
    return client.post(f"/models/{model}/predict", files=files)


def test_the_parts_of_a_form_are_inputs_by_name(client: httpx.Client) -> None:
    """Files and values may be mixed, and outputs are answered by name."""
    answer = form(
        client, "pair", [("a", ("a.npy", npy(ROWS[:, :2]))), ("b", (None, "[[1, 1], [2, 2]]"))]
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"]["sum"] == [[1, 2], [6, 7]]


def test_parts_of_one_name_are_rows(client: httpx.Client) -> None:
    """Files, text and numbers become rows."""
    images = [("x", ("a.png", one, "image/png")) for one in (IMAGE, OTHER)]
    assert form(client, "known", images).json()["outputs"] == {"y": [True, True]}
    words = [("x", (None, word)) for word in ("cat", "a longer one")]
    assert form(client, "text", words).json()["outputs"] == {"y": ["cat", "a longer one"]}
    rows = [("x", (None, "[1, 2, 3, 4]")), ("x", (None, "[5, 6, 7, 8]"))]
    assert form(client, "same", rows).json()["outputs"] == {"y": [[1, 2, 3, 4], [5, 6, 7, 8]]}


def test_a_form_of_one_image(client: httpx.Client) -> None:
    """`curl -F` sends such a form."""
    answer = form(client, "image", [("image", ("a.png", IMAGE, "image/png"))])
    assert answer.json()["outputs"]["pixels"] == PIXELS[..., ::-1].tolist()


@pytest.mark.parametrize(
    ("model", "files", "status", "says"),
    [
        ("pair", [("a", (None, "[[1, 2]]"))], 400, "input 'b' is missing"),
        ("same", [("y", (None, "[[1, 2, 3, 4]]"))], 400, "input 'y' not found"),
        ("same", [("x", (None, "[[1, 2,"))], 400, "part 'x': the body is not valid JSON"),
        ("same", [("x", ("a.npy", b"no"))], 400, "part 'x': the body is not a .npy file"),
        ("same", [("x", ("a.npy", npy(ROWS)))] * 2, 400, "must be one .npy file"),
        ("same", [("x", ("a.png", IMAGE, "image/png"))], 415, "not a file of 'image/png'"),
        (
            "image",
            [("image", ("a.png", IMAGE, "image/png"))] * 2,
            400,
            "one file per request, got 2",
        ),
    ],
)
def test_a_form_that_does_not_fit_is_told(
    client: httpx.Client, model: str, files: Any, status: int, says: str
) -> None:
    """The error names the wrong part."""
    assert says in refusal(form(client, model, files), status)


@pytest.mark.parametrize(
    ("media", "body", "says"),
    [
        ("multipart/form-data", b"", "has no boundary; omit the header"),
        ("multipart/form-data; boundary=b", b"", "ends before its last boundary"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\n", "ends before its last boundary"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\n\r\nx\r\n--b--\r\n",
            "part 0 has no content-d",
        ),
        ("multipart/form-data; boundary=b", b"x" * 20_000, "is not multipart/form-data"),
    ],
)
def test_a_broken_form_is_told(client: httpx.Client, media: str, body: bytes, says: str) -> None:
    """A form without a boundary, an end or names is refused."""
    assert says in refusal(send(client, "known", body, media))


def test_csv_is_told_its_route(client: httpx.Client) -> None:
    """/predict takes none."""
    assert "CSV to /invocations?model=NAME" in refusal(send(client, "mlp", b"1,2", "text/csv"), 415)


def test_the_document_says_which_files_each_model_takes(client: httpx.Client) -> None:
    """All have forms, those with one input have arrays, and those of bytes have files."""
    paths = client.get("/openapi.json").json()["paths"]
    for model, array, file in (
        ("pair", False, False),
        ("mlp", True, False),
        ("image", True, True),
        ("known", True, True),  # a file in words only: not all that take BYTES take any
    ):
        operation = paths[f"/models/{model}/predict"]["post"]
        taken = operation["requestBody"]["content"].keys()
        assert "`Content-Type: multipart/form-data`" in operation["description"]
        assert (f"`Content-Type: {NPY}`" in operation["description"]) == array
        assert ("application/octet-stream" in taken) == (model == "image")
        assert ("image/png" in operation["description"]) == file


# --- Packed bodies


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/models/same/predict", {"input": ROWS.tolist()}),
        ("/predict", {"model": "same", "inputs": {"x": ROWS.tolist()}}),
        ("/v1/models/same:predict", {"instances": ROWS.tolist()}),
    ],
)
def test_a_packed_body_is_unpacked(client: httpx.Client, path: str, body: Any) -> None:
    """Every form of the simple API and V1 unpacks it."""
    plain = client.post(path, json=body).json()
    packed = gzip.compress(json.dumps(body).encode())
    answer = client.post(path, content=packed, headers={"content-encoding": "gzip"})
    assert answer.status_code == 200, answer.text
    known = ("prediction", "outputs", "predictions")
    assert [answer.json().get(key) for key in known] == [plain.get(key) for key in known]


def test_files_may_be_packed_and_answers_are_where_asked(client: httpx.Client) -> None:
    """An array goes in and a long one comes out."""
    large = np.zeros((4000, 4), "f4")
    answer = send(
        client, "same", gzip.compress(npy(large)), NPY,
        content_encoding="gzip", accept_encoding="gzip",
    )  # fmt: skip
    assert answer.headers["content-encoding"] == "gzip"
    assert prediction(answer) == large.tolist()


def test_a_packed_body_is_bounded_by_what_it_unpacks_to(client: httpx.Client) -> None:
    """A bomb is as large as what comes out of it; an unknown coding is named."""
    bomb = gzip.compress(b"[" + bytes(8 << 20))
    said = refusal(send(client, "same", bomb, "", content_encoding="gzip"), 413)
    assert "larger than the 4 MiB" in said
    assert "'br'" in refusal(send(client, "same", b"x", "", content_encoding="br"), 415)


def test_what_was_refused_is_counted(server: Cohort, client: httpx.Client) -> None:
    """Refusals count by model and code, as for JSON."""
    labels = {"model": "mlp", "code": "UnsupportedMedia"}
    before = Scrape(server.url).value("model_inference_total", **labels)
    send(client, "mlp", IMAGE, "image/png")
    assert Scrape(server.url).value("model_inference_total", **labels) == before + 1
