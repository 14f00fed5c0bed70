"""`add_image_input`, `add_tokenizer` and `add_labels` of a recipe, on plain models, and served."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from cohort.cli.options import MISUSED, OK, PROBLEMS
from cohort.errors import InvalidInput
from cohort.session import SessionOptions, open_session
from cohort_prepare.grafting.tokenizer import SENTENCES
from tests.cli.test_cli import run
from tests.e2e.processes import cohort

SIZE = (24, 32)
COLOURS = ("red", "green", "blue")
NORMAL = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(
    path: Path, nodes: Any, ins: Any, out: Any, weights: Mapping[str, Any], opset: int
) -> None:
    arrays = [numpy_helper.from_array(np.asarray(one), name) for name, one in weights.items()]
    graph = helper.make_graph(nodes, "plain", ins, [out], arrays)
    opsets = [helper.make_opsetid("", opset)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def write_pictures(path: Path, opset: int = 21) -> None:
    """`pixels` FP32 [N, 3, 24, 32] → `scores` [N, 3]: the mean of each colour."""
    node = helper.make_node("ReduceMean", ["pixels", "axes"], ["scores"], keepdims=0)
    saved(path, [node], [value("pixels", ["N", 3, *SIZE])], value("scores", ["N", 3]),
          {"axes": [2, 3]}, opset)  # fmt: skip


def write_words(path: Path, entries: int) -> None:
    """Save a model: ids, mask and types → `scores` [N, 2], the sum of the ids' rows in a table."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["entries"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "two"], ["wide"]),
        helper.make_node("Mul", ["entries", "wide"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["types", "one"], ["second"], keepdims=1),
        helper.make_node("Add", ["sum", "second"], ["scores"]),
    ]
    table = np.random.default_rng(0).normal(size=(entries, 2)).astype(np.float32)
    inputs = [value(name, ["N", "length"], TensorProto.INT64) for name in names]
    weights = {"table": table, "one": [1], "two": [2]}
    saved(path, nodes, inputs, value("scores", ["N", 2]), weights, 21)


def write_tokenizer(path: Path) -> int:
    """A WordPiece tokenizer as BERT's; how many ids it has."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL)
    made.train_from_iterator([*SENTENCES, "great good bad awful 0123456789"], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(path))
    return made.get_vocab_size()


def prepare(folder: Path, recipe: Mapping[str, Any], code: int = OK) -> Any:
    """The JSON object of `cohort prepare`."""
    (folder / "recipe.yaml").write_text(json.dumps({"source": "plain.onnx", **recipe}))
    done = run("prepare", str(folder / "recipe.yaml"), "--json")
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout)


def file_of(picture: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


def test_a_model_of_pixels_takes_pictures_and_answers_labels(tmp_path: Path) -> None:
    """A recipe publishes it, and it is served unchanged: PNG and raw pixels work, never a JPEG."""
    write_pictures(tmp_path / "plain.onnx")
    (tmp_path / "colours.txt").write_text("\n".join(COLOURS))
    recipe = {
        "add_image_input": {"image": {"resize": "shorter_side_then_crop", **NORMAL}},
        "add_labels": {"labels": "colours.txt"},
        "publish": {"name": "colour", "to": "models"},
    }
    done = prepare(tmp_path, recipe)
    assert [one["step"] for one in done["steps"]] == ["add_image_input", "add_labels", "publish"]
    assert done["steps"][1]["output"] == "scores"
    with cohort(tmp_path / "models", tmp_path) as server:

        def send(content: bytes) -> httpx.Response:
            headers = {"content-type": "application/octet-stream"}
            url = f"{server.url}/models/colour/predict?top=1"
            return httpx.post(url, content=content, headers=headers, timeout=60)

        raw = np.full((*SIZE, 3), (10, 200, 30), np.uint8).tobytes()
        for sent in (file_of(Image.new("RGB", (90, 70), (10, 200, 30))), raw):
            answer = send(sent)
            assert answer.status_code == 200, answer.text
            assert '"label":"green"' in answer.text
        other = file_of(Image.new("RGB", (90, 70), (10, 200, 30)), "JPEG")
        for refused in (other, other[:99], b"text", file_of(Image.new("L", (9, 9)), "GIF")):
            answer = send(refused)
            assert answer.status_code == 400, answer.text
            assert "reshape" in answer.text.lower()


def test_damaged_pictures_end_nothing(tmp_path: Path) -> None:
    """Each of 500 PNG files, cut or changed, gives an answer or an error in this process."""
    write_pictures(tmp_path / "plain.onnx")
    prepare(tmp_path, {"work": "build", "add_image_input": {}})
    options = SessionOptions(custom_op_libraries=("extensions",))
    session = open_session(tmp_path / "build/add_image_input.onnx", options=options)
    generator = random.Random(0)
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    whole, failed = file_of(Image.fromarray(noise)), 0
    for number in range(500):
        file = bytearray(whole)
        for _ in range(generator.randrange(1, 9)):
            file[generator.randrange(len(file))] = generator.randrange(256)
        sent = file[: generator.randrange(len(file))] if number % 2 else file
        try:
            session.run({"image": np.frombuffer(bytes(sent), np.uint8)})
        except Exception:  # noqa: BLE001 - of any kind, as long as it is one
            failed += 1
    assert failed > 250
    huge = bytearray(whole)
    huge[16:24] = b"\0\0\xff\xff" * 2  # a width and height that no memory can hold
    with pytest.raises(InvalidInput):
        session.run({"image": np.frombuffer(bytes(huge), np.uint8)})


def test_a_model_of_ids_takes_sentences(tmp_path: Path) -> None:
    """The ids are the tokenizer's own; sentences of different length run together."""
    write_words(tmp_path / "plain.onnx", write_tokenizer(tmp_path / "tokenizer.json"))
    (tmp_path / "mine.txt").write_text("great\nnot so bad, is it?\n")
    recipe = {
        "add_tokenizer": {"tokenizer": "tokenizer.json", "max_length": 16, "texts": "mine.txt"},
        "publish": {"name": "mood", "to": "models"},
    }
    prepare(tmp_path, recipe)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    plain = open_session(tmp_path / "plain.onnx")
    with cohort(tmp_path / "models", tmp_path) as server:
        texts = ["great", "bad, and good, and awful: " * 3]
        answer = httpx.post(f"{server.url}/models/mood/predict", json={"input": texts})
        assert answer.status_code == 200, answer.text
        tokenizer.enable_truncation(16)
        for text, scores in zip(texts, answer.json()["prediction"], strict=True):
            cut = tokenizer.encode(text)
            (expected,) = plain.run(
                {
                    "input_ids": np.array([cut.ids]),
                    "attention_mask": np.array([cut.attention_mask]),
                    "token_type_ids": np.array([cut.type_ids]),
                }
            )
            assert scores == pytest.approx(expected[0].tolist(), abs=1e-4)


def test_sentences_that_the_operator_cuts_otherwise_are_a_verdict(tmp_path: Path) -> None:
    """No file is written, and the message has the sentence and the alternative."""
    write_words(tmp_path / "plain.onnx", write_tokenizer(tmp_path / "tokenizer.json"))
    (tmp_path / "mine.txt").write_text("great\nemoji \U0001f600x\n")
    section = {"tokenizer": "tokenizer.json", "texts": "mine.txt"}
    done = prepare(tmp_path, {"work": "build", "add_tokenizer": section}, PROBLEMS)
    assert "1 of 2 texts get other ids" in done["error"]
    assert "emoji" in done["error"]
    assert "inputs: {text: {tokenizer: tokenizer.json}}" in done["error"]
    assert not [*(tmp_path / "build").iterdir()]


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    """The error names its kind."""
    write_words(tmp_path / "plain.onnx", 300)
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    section = {"tokenizer": "tokenizer.json"}
    done = prepare(tmp_path, {"work": "build", "add_tokenizer": section}, MISUSED)
    assert "tokenizer.json is BPE" in done["error"]


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"add_labels": {"labels": "two.txt"}}, "2 classes, but no float output has 2 columns"),
        ({"add_labels": {"labels": "gap.txt"}}, "gap.txt must have a label on each line"),
        ({"add_labels": {"labels": "two.txt", "output": "z"}}, "the model has no output 'z'"),
        ({"add_image_input": {"of": "z"}}, "the model has no input 'z'; it has 'pixels'"),
        ({"add_image_input": {"name": "scores"}}, "the model already has 'scores'"),
        ({"add_image_input": {"image": {"size": [8, 8]}}}, "does not fit the model's shape"),
    ],
)
def test_what_does_not_fit_the_model_is_said(
    tmp_path: Path, recipe: Mapping[str, Any], said: str
) -> None:
    """The error names both, and no file is written."""
    write_pictures(tmp_path / "plain.onnx")
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "gap.txt").write_text("a\n\nb\n")
    assert said in prepare(tmp_path, {"work": "build", **recipe}, MISUSED)["error"]
    assert not [*(tmp_path / "build").iterdir()]


def test_an_old_opset_is_refused_with_the_step_that_helps(tmp_path: Path) -> None:
    """Resize filters as Pillow does from opset 18 on."""
    write_pictures(tmp_path / "plain.onnx", opset=18)
    model = onnx.load(tmp_path / "plain.onnx")
    model.opset_import[0].version = 17
    model.graph.node[0].CopyFrom(
        helper.make_node("ReduceMean", ["pixels"], ["scores"], axes=[2, 3], keepdims=0)
    )
    onnx.save(model, tmp_path / "plain.onnx")
    done = prepare(tmp_path, {"work": "build", "add_image_input": {}}, MISUSED)
    assert "the model has opset 17, but a graft needs 18" in done["error"]


def test_what_a_recipe_leaves_is_taken_along(tmp_path: Path) -> None:
    """`cohort init NAME FILE` has the library in its config, and `cohort check` is content."""
    write_pictures(tmp_path / "plain.onnx")
    prepare(tmp_path, {"work": "build", "add_image_input": {}})
    file = str(tmp_path / "build/add_image_input.onnx")
    models = ("--models", str(tmp_path / "models"))
    assert run("init", *models, "mine", file).exit_code == OK
    config = (tmp_path / "models/mine/config.yaml").read_text()
    assert '\nsession: {"custom_op_libraries": ["extensions"]}\n' in config
    checked = run("check", str(tmp_path / "models"))
    assert checked.exit_code == OK, checked.stderr
