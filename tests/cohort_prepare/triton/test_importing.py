"""`cohort convert config.pbtxt`: Triton's files become Cohort's."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from cohort.repository import load_model_config, parse_yaml
from cohort_prepare.failures import Misused
from cohort_prepare.triton.importing import Imported, import_config
from cohort_prepare.triton.text_format import MAX_BYTES
from tests import onnx_models
from tests.cohort_prepare.commands import run_in
from tests.e2e.processes import cohort, free_port
from tests.waiting import PATIENCE, wait_until

ENSEMBLE = """
name: "both"
platform: "ensemble"
max_batch_size: 8
input [ { name: "RAW" data_type: TYPE_FP32 dims: [ 4 ] },
        { name: "IDLE" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [
  { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" },
  { name: "plain:0" data_type: TYPE_FP32 dims: [ 3 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "same.1"
      model_version: -1
      input_map { key: "x" value: "RAW" }
      output_map { key: "y" value: "copied values" }
    },
    {
      model_name: "mlp"
      model_version: 1
      input_map { key: "x" value: "copied values" }
      output_map { key: "y" value: "SCORES" }
    },
    {
      model_name: "mlp"
      model_version: -1
      input_map { key: "x" value: "RAW" }
      output_map { key: "y" value: "plain:0" }
    }
  ]
}
"""


def imported(folder: Path, text: str, name: str = "m") -> Imported:
    """The result of converting a config.pbtxt in a model's folder."""
    path = folder / name / "config.pbtxt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return import_config(path, None)


def config(folder: Path, text: str) -> tuple[object, str]:
    """The keys of a config.yaml, which a server can read, and the notes on one line."""
    made = imported(folder, text)
    if made.out is None:
        return {}, "; ".join(made.notes)
    load_model_config(made.out.parent)
    found = parse_yaml(made.text, "config.yaml")
    made.out.unlink()
    return found, "; ".join(made.notes)


def test_an_ensemble_answers_as_its_models_do(tmp_path: Path) -> None:
    """Its pipeline.yaml serves as it is, under the names that Triton's clients use."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.identity(shape=("N", 4)), models / "same.1/1/model.onnx")
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    (models / "both").mkdir()
    (models / "both/labels.txt").write_text("a\nb\nc\n")
    (models / "both/config.pbtxt").write_text(ENSEMBLE)
    done = run_in(models, "convert", "both/config.pbtxt")
    assert done.exit_code == 0, done.output
    assert "max_batch_size is not converted" in done.output
    assert "input 'IDLE' is omitted" in done.output
    again = run_in(models, "convert", "both/config.pbtxt")
    assert again.exit_code == 2
    assert "already exists" in again.output
    rows = np.array([[0.5, -1.25, 3.0, 0.001], [1, 2, 3, 4]], np.float32)
    with cohort(models, tmp_path, grpc_port=free_port()) as server:
        wait_until(lambda: server.get("/v2/models/both/ready").status_code == 200)
        answers = {}
        for model, name in (("both", "RAW"), ("mlp", "x")):
            sent = InferInput(name, [2, 4], "FP32")
            sent.set_data_from_numpy(rows)
            with InferenceServerClient(server.grpc) as client:
                answers[model] = client.infer(model, [sent])
        for name in ("SCORES", "plain:0"):
            np.testing.assert_allclose(
                answers["both"].as_numpy(name), answers["mlp"].as_numpy("y"), rtol=1e-6
            )
        body = {"inputs": {"RAW": rows.tolist()}}
        answer = httpx.post(f"{server.url}/models/both/predict", json=body, timeout=PATIENCE)
        assert '"label":"' in answer.text


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("max_batch_size: 16", {"batching": {"max_batch_size": 16}}),
        ("max_batch_size: 0", {"batching": {"max_batch_size": 1}}),
        ("dynamic_batching { max_queue_delay_microseconds: 500 }",
         {"batching": {"max_queue_delay_ms": 0.5}}),
        ("dynamic_batching { default_queue_policy { max_queue_size: 64 "
         "default_timeout_microseconds: 250000 } }",
         {"batching": {"max_queue_size": 64}, "timeout_ms": 250.0}),
        ("version_policy: { latest { num_versions: 2 } }", {"versions": {"latest": 2}}),
        ("version_policy: { all { } }", {"versions": "all"}),
        ("version_policy { specific { versions: [ 1, 3 ] } }", {"versions": [1, 3]}),
        ("instance_group [ { count: 1 kind: KIND_CPU } ]", {"providers": ["cpu"]}),
        ("instance_group [ { kind: KIND_GPU gpus: [ 1 ] } ]",
         {"providers": [{"cuda": {"device_id": 1}}, "cpu"]}),
        ('optimization { execution_accelerators { gpu_execution_accelerator: [ { name: "tensorrt" '
         'parameters { key: "precision_mode" value: "FP16" } } ] } }',
         {"providers": [{"tensorrt": {"trt_fp16_enable": True}}, "cuda", "cpu"]}),
        ('optimization { execution_accelerators { cpu_execution_accelerator: [ '
         '{ name: "openvino" } ] } }', {"providers": ["openvino", "cpu"]}),
        ("optimization { graph: { level: -1 } }", {"session": {"graph_optimization": "basic"}}),
        ('parameters { key: "intra_op_thread_count" value: { string_value: "4" } }',
         {"session": {"intra_op_threads": 4}}),
        ('output [ { name: "p" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "l.txt" } ]',
         {"outputs": {"p": {"labels": "l.txt"}}}),
        ("response_cache { enable: true }", {"cache": {"max_mb": 64}}),
        ('model_warmup [ { name: "w" batch_size: 8 } ]', {"warm_up": {"rows": [8]}}),
        ('sequence_batching { max_sequence_idle_microseconds: 5000000 state [ { input_name: "h" '
         'output_name: "hn" data_type: TYPE_FP32 dims: [ -1 ] } ] }',
         {"state": {"h": "hn"}, "sequences": {"idle_seconds": 5.0}}),
        ('input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]', {}),
    ],
)  # fmt: skip
def test_keys_of_a_model_become_those_of_a_config(
    tmp_path: Path, text: str, keys: dict[str, object]
) -> None:
    """Each as a server reads it."""
    assert config(tmp_path, f'name: "m" backend: "onnxruntime" {text}')[0] == keys


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("dynamic_batching { preferred_batch_size: [ 4, 8 ] }", "preferred_batch_size is not"),
        (
            "instance_group [ { count: 2 } ]",
            "instance_group.count is not converted: one session",
        ),
        ("instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]", "of the GPUs 0, 1 only 0"),
        ('default_model_filename: "resnet.onnx"', "rename 'resnet.onnx' to model.onnx"),
        ('parameters { key: "execution_mode" value: { string_value: "1" } }', "'execution_mode'"),
        ("model_transaction_policy { decoupled: true }", "keep decoupled models on Triton"),
        ('sequence_batching { control_input [ { name: "START" } ] }', "control_input is not"),
        ("something_new { a: 1 }", "'something_new' is not converted"),
        ("dynamic_batching { something_new: 1 }", "dynamic_batching.something_new is not"),
        ("input [ { reshape { shape: [ ] } } ]", "input.reshape is not converted"),
        ('name: "other"', "the model is named 'other'"),
    ],
)
def test_what_is_not_carried_over_is_named(tmp_path: Path, text: str, note: str) -> None:
    """Each note has advice."""
    assert note in config(tmp_path, f"{text} platform: 'onnxruntime_onnx'")[1]


def test_models_of_other_backends_are_named(tmp_path: Path) -> None:
    """They are named alone, and as a step of an ensemble."""
    with pytest.raises(Misused, match=r"backend 'python'.*transform"):
        imported(tmp_path, 'backend: "python"', "same.1")
    made = imported(tmp_path, ENSEMBLE, "both")
    assert any("step 'same_1': model 'same.1' has the backend 'python'" in one
               for one in made.notes)  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'value: "RAW"',
            'value: "RAWW"',
            "input 'x' is from 'RAWW', which no step returns; did you",
        ),
        ('name: "SCORES"', 'name: "OTHER"', "output 'OTHER' is from 'OTHER'"),
        ('value: "plain:0"', 'value: "SCORES"', "'SCORES' comes from 'mlp.y' and from step"),
        (
            'model_name: "mlp"',
            'model_name: "../mlp"',
            "'../mlp', in a step, is not a valid model name",
        ),
        ('model_name: "mlp"', "model_name: mlp", "model_name must be a quoted string"),
        ("model_version: 1", 'model_version: "1"', "step.model_version must be a whole number"),
        ("ensemble_scheduling {", "ensemble_scheduling: 7 x {", "must be a message in braces"),
    ],
)
def test_mistakes_of_an_ensemble_are_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    """The error names the step and the tensor, and no file is written."""
    with pytest.raises(Misused) as raised:
        imported(tmp_path, ENSEMBLE.replace(old, new))
    assert said in str(raised.value)
    assert [one.name for one in (tmp_path / "m").iterdir()] == ["config.pbtxt"]


def test_an_input_with_the_name_of_an_output_stays_the_input(tmp_path: Path) -> None:
    """Its step gets another name, so that outputs are not the input."""
    text = imported(tmp_path, ENSEMBLE.replace('"RAW"', '"mlp.y"'), "both").text
    made: Any = parse_yaml(text, "pipeline.yaml")
    assert list(made["steps"]) == ["same_1", "mlp_2", "mlp_3"]
    assert made["steps"]["mlp_3"]["inputs"] == {"x": "mlp.y"}
    assert made["outputs"]["SCORES"]["from"] == "mlp_2.y"


def test_no_text_does_harm(tmp_path: Path) -> None:
    """Cut, mutated, or long ones give a file that a server can read, or are refused."""
    random.seed(41)
    step = '{ model_name: "mlp" output_map { key: "y" value: "%d" } }'
    texts = [
        ENSEMBLE[:end] for end in range(0, len(ENSEMBLE), 37)
    ] + [
        'name: "m" ensemble_scheduling { step [ ' + ",".join(step % n for n in range(5000)) + "] }",
        "a: 1 " * (MAX_BYTES // 5 - 10),
        'name: "' + "x" * (MAX_BYTES - 20) + '"',
        'backend: "onnxruntime" max_batch_size: 99999999999999999999999',
        'backend: "onnxruntime" max_batch_size: 9999999999',
        'backend: "onnxruntime" output [ { name: "a\\n: {}" label_filename: "../../x" } ]',
    ]  # fmt: skip
    for _ in range(200):
        mutated = list(ENSEMBLE)
        for _ in range(3):
            mutated[random.randrange(len(mutated))] = random.choice('{}[]:"<> \\x1,#')
        texts.append("".join(mutated))
    for number, text in enumerate(texts):
        with suppress(Misused):
            assert len(imported(tmp_path, text, f"m{number}").notes) < 200
    (tmp_path / "m/config.pbtxt").parent.mkdir(exist_ok=True)
    (tmp_path / "m/config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(Misused, match="not UTF-8 text"):
        import_config(tmp_path / "m/config.pbtxt", None)
