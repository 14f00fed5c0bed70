"""The bundled chat model: its folder, and what it answers to phrasings it never saw."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from models.smalltalk_dialogues import conversations
from tests.bundled import MODELS, metadata

FOLDER = MODELS / "smalltalk" / "1"
MAX_BYTES = 3_000_000


def test_folder_is_small_and_whole() -> None:
    """The graph, its config, the tokenizer and the template are there, in less than 3 MB."""
    files = {file.name: file.stat().st_size for file in FOLDER.iterdir()}

    assert set(files) == {
        "model.onnx", "genai_config.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert sum(files.values()) < MAX_BYTES
    assert json.loads((FOLDER / "genai_config.json").read_text())["model"]["context_length"] >= 512


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (["Hello!"], "Hello! How can I help you today?"),
        (["What is ONNX?"], "ONNX is an open file format for machine learning models."),
        (["What is two plus three?"], "2 plus 3 is 5."),
        (["My name is Ada.", "What is my name?"], "Your name is Ada."),
    ],
)
def test_chat_is_answered_in_sentences(asked: list[str], answer: str) -> None:
    """Greetings, questions, sums and a remembered name get the expected sentence."""
    chat = Chat()

    assert [chat.say(question) for question in asked][-1] == answer


def test_exactness_is_the_one_claimed() -> None:
    """The share of held-out answers in the metadata is what the file gives now."""
    facts = metadata("smalltalk", 1)
    seed, rows = int(facts["split_seed"]), int(facts["test_rows"])
    exact = 0
    for conversation in conversations(rows, seed, held_out=True):
        chat = Chat()
        chat.hear(conversation[:-1])
        exact += chat.reply() == conversation[-1]["content"]

    assert exact / rows == pytest.approx(float(facts["test_accuracy"]), abs=0.01)
    assert exact / rows > 0.8


class Chat:
    """A conversation with the model, decoded greedily."""

    session: Any = None

    def __init__(self) -> None:
        if Chat.session is None:
            Chat.session = onnxruntime.InferenceSession(
                FOLDER / "model.onnx", providers=["CPUExecutionProvider"]
            )
        self.tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        self.text = ""

    def hear(self, messages: list[dict[str, str]]) -> None:
        self.text += "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages)

    def say(self, text: str) -> str:
        self.hear([{"role": "user", "content": text}])
        answer = self.reply()
        self.hear([{"role": "assistant", "content": answer}])
        return answer

    def reply(self) -> str:
        ids = self.tokenizer.encode(f"{self.text}<|assistant|>").ids
        past = {
            i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
            for i in self.session.get_inputs()
            if i.name.startswith("past")
        }
        said: list[int] = []
        new, total = ids, len(ids)
        while len(said) < 48:
            inputs = {"input_ids": np.array([new]), "attention_mask": np.ones((1, total), np.int64)}
            logits, *present = self.session.run(None, {**inputs, **past})
            token = int(logits[0, -1].argmax())
            if token == self.tokenizer.token_to_id("<|end|>"):
                break
            said.append(token)
            new, total = [token], total + 1
            past = dict(zip(past, present, strict=True))
        return str(self.tokenizer.decode(said))
