"""Fusions in a real transformer, exported by the library that most have theirs from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cohort_prepare.environments import find_environment
from cohort_prepare.evaluating.cases import Cases, write_cases
from cohort_prepare.frameworks import FRAMEWORKS
from cohort_prepare.optimizing import OptimizeOptions, optimize
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="torch is fetched; `make converters` runs it"
)

EXPORT = """
import sys, torch
from transformers import BertConfig, BertModel
torch.manual_seed(0)
config = BertConfig(
    vocab_size=1000, hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
    intermediate_size=512, max_position_embeddings=128, attn_implementation="eager",
)
bert = BertModel(config, add_pooling_layer=False).eval()

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

names = ["input_ids", "attention_mask", "hidden"]
torch.onnx.export(
    Encoder(), (torch.ones(2, 16, dtype=torch.long),) * 2, sys.argv[1], input_names=names[:2],
    output_names=names[2:], dynamic_axes={name: {0: "batch", 1: "length"} for name in names},
    opset_version=18, dynamo=False,
)
"""


def test_attention_is_fused_and_minds_its_mask(tmp_path: Path) -> None:
    """Every attention becomes one node, also where the mask leaves out what is not at the end."""
    path = tmp_path / "model.onnx"
    subprocess.run(
        [*find_environment(FRAMEWORKS["huggingface"]).command, "-c", EXPORT, str(path)],
        check=True,
        timeout=5 * PATIENCE,
    )
    random = np.random.default_rng(0)
    mask = random.integers(0, 2, (8, 24))
    mask[:, 5] = 1
    cases = tmp_path / "cases.npz"
    write_cases(
        cases, Cases({"input_ids": random.integers(0, 1000, (8, 24)), "attention_mask": mask})
    )
    options = OptimizeOptions(steps=("fuse", "slim", "ort-extended"), sizes=(1,), budget=0.2)
    done = optimize(path, tmp_path / "out.onnx", options=options, cases=cases)
    assert "3 Attention" in done.steps[0].what
    assert done.after.nodes < done.before.nodes / 4
    assert all(one.kept for one in done.steps[:2])
