"""Train the bundled chat model, smalltalk version 1.

Run it in the environment of README.md in this folder, from the repository's root::

    python -m models.train_smalltalk                  # writes models/smalltalk/1
    python -m models.train_smalltalk --into build

The conversations come from a program (smalltalk_dialogues.py); every choice is seeded.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional

from models.decoder import END, SPECIAL, byte_level, write_decoder
from models.decoder_graph import DecoderShape
from models.smalltalk_dialogues import Message, conversations

SEED = 7
CONVERSATIONS = 24_000
HELD_OUT = 300
BATCH, STEPS, RATE = 48, 480, 4e-3
LENGTH = 176
MIN_EXACT = 0.8


def main() -> None:
    """Train, measure on held-out phrasings and write the folder."""
    parser = argparse.ArgumentParser(description="Train the bundled chat model.")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)

    corpus = list(conversations(CONVERSATIONS, SEED))
    tokenizer = trained_tokenizer(corpus)
    shape = DecoderShape(
        vocabulary=tokenizer.get_vocab_size(), width=128, layers=3, heads=4, kv_heads=2,
        head_size=32, inner=320, context=512, tied=True,
    )  # fmt: skip
    network = Network(shape)
    train(network, [tokens(tokenizer, one) for one in corpus])

    held_out = list(conversations(HELD_OUT, SEED + 1, held_out=True))
    weights = {name: value.detach().numpy() for name, value in network.named_weights()}
    folder = options.into / "smalltalk" / "1"
    search = {"temperature": 1.0, "top_k": 1}
    path = write_decoder(folder, shape, weights, tokenizer=tokenizer, **search)
    exact, perplexity = measured(path, shape, tokenizer, held_out, network)
    print(f"smalltalk/1: {exact:.4f} of held-out answers exact, perplexity {perplexity:.3f}")
    sign(path, exact, perplexity)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"wrote {folder} ({size:,} bytes)")
    if exact < MIN_EXACT:
        raise SystemExit(f"smalltalk/1: {exact:.4f} is less than {MIN_EXACT}")


def trained_tokenizer(corpus: list[list[Message]]) -> Tokenizer:
    """Train byte-level BPE on the conversations."""
    tokenizer = byte_level(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((m["content"] for one in corpus for m in one), trainer)
    return byte_level(tokenizer)


def tokens(tokenizer: Tokenizer, conversation: list[Message]) -> tuple[list[int], list[bool]]:
    """Return a conversation's tokens, and which of them the model has to say."""
    ids: list[int] = []
    said: list[bool] = []
    for message in conversation:
        role = tokenizer.token_to_id(f"<|{message['role']}|>")
        body = [*tokenizer.encode(message["content"]).ids, tokenizer.token_to_id(END)]
        ids += [role, *body]
        said += [False, *[message["role"] == "assistant"] * len(body)]
    return ids, said


class Network(nn.Module):
    """Llama as `decoder_graph` writes it; parameters by Hugging Face's names."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.values = nn.ParameterDict()
        for name, size in shape.weights():
            drawn = torch.ones(size) if len(size) == 1 else torch.randn(size) * 0.05
            self.values[name.replace(".", "/")] = nn.Parameter(drawn)
        half = torch.arange(0, shape.head_size, 2) / shape.head_size
        angles = torch.arange(shape.context)[:, None] / shape.theta**half
        self.angles = angles.cos(), angles.sin()

    def named_weights(self) -> list[tuple[str, torch.Tensor]]:
        return [(name.replace("/", "."), value) for name, value in self.values.items()]

    def weight(self, name: str) -> torch.Tensor:
        return self.values[f"{name}.weight".replace(".", "/")]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight(name), self.shape.epsilon)

    def heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        flat = functional.linear(x, self.weight(name))
        return flat.unflatten(-1, (-1, self.shape.head_size)).transpose(1, 2)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = (part[: x.shape[2]] for part in self.angles)
        low, high = x.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        table = self.weight("model.embed_tokens")
        x = table[ids]
        shared = self.shape.heads // self.shape.kv_heads
        for layer in range(self.shape.layers):
            at = f"model.layers.{layer}"
            normed = self.norm(x, f"{at}.input_layernorm")
            query, key, value = (self.heads(normed, f"{at}.self_attn.{p}_proj") for p in "qkv")
            key = self.rotated(key).repeat_interleave(shared, 1)
            mixed = functional.scaled_dot_product_attention(
                self.rotated(query), key, value.repeat_interleave(shared, 1), is_causal=True
            )
            flat = mixed.transpose(1, 2).flatten(2)
            x = x + functional.linear(flat, self.weight(f"{at}.self_attn.o_proj"))
            normed = self.norm(x, f"{at}.post_attention_layernorm")
            gate = functional.silu(functional.linear(normed, self.weight(f"{at}.mlp.gate_proj")))
            up = functional.linear(normed, self.weight(f"{at}.mlp.up_proj"))
            x = x + functional.linear(gate * up, self.weight(f"{at}.mlp.down_proj"))
        return functional.linear(self.norm(x, "model.norm"), table)


def padded(batch: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and targets [rows, length]; -100 is what the model need not say."""
    length = min(LENGTH, max(len(ids) for ids, _ in batch)) - 1
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    targets = torch.full((len(batch), length), -100)
    for row, (all_ids, said) in enumerate(batch):
        kept = min(length, len(all_ids) - 1)
        ids[row, :kept] = torch.tensor(all_ids[:kept])
        following = torch.tensor(all_ids[1 : kept + 1])
        targets[row, :kept] = torch.where(torch.tensor(said[1 : kept + 1]), following, -100)
    return ids, targets


def batches(lengths: list[int]) -> list[list[int]]:
    """Return the rows of each batch; rows of one batch have similar lengths."""
    order = torch.randperm(len(lengths))[: STEPS * BATCH].tolist()
    groups = [
        sorted(order[at : at + 8 * BATCH], key=lengths.__getitem__)
        for at in range(0, len(order), 8 * BATCH)
    ]
    sorted_rows = [row for group in groups for row in group]
    cut = [sorted_rows[at : at + BATCH] for at in range(0, len(sorted_rows), BATCH)]
    return [cut[at] for at in torch.randperm(len(cut))]


def train(network: Network, corpus: list[tuple[list[int], list[bool]]]) -> None:
    """Train on batches of conversations, whose order is seeded."""
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.02
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    began = time.monotonic()
    for step, rows in enumerate(batches([len(ids) for ids, _ in corpus])):
        ids, targets = padded([corpus[row] for row in rows])
        loss = functional.cross_entropy(network(ids).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 19:
            print(
                f"step {step + 1}: loss {loss.item():.4f}, {time.monotonic() - began:.0f} s",
                flush=True,
            )


def measured(
    path: Path,
    shape: DecoderShape,
    tokenizer: Tokenizer,
    held_out: list[list[Message]],
    network: Network,
) -> tuple[float, float]:
    """Return the share of answers that greedy decoding gives exactly, and the perplexity."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    exact, loss, count, furthest = 0, 0.0, 0, 0.0
    for conversation in held_out:
        ids, said = tokens(tokenizer, conversation)
        logits = whole(session, shape, ids)
        with torch.inference_mode():
            furthest = max(
                furthest, float(np.abs(network(torch.tensor([ids]))[0].numpy() - logits).max())
            )
        shares = logits[:-1] - np.log(np.exp(logits[:-1]).sum(-1, keepdims=True))
        asked = np.array(said[1:])
        following = np.array(ids[1:])
        loss -= float(shares[np.arange(len(following)), following][asked].sum())
        count += int(asked.sum())
        # Greedy decoding gives exactly this answer if each token is the most likely one.
        last = np.flatnonzero(~asked)[-1] + 1
        exact += bool((shares.argmax(-1)[last:] == following[last:]).all())
    print(f"ONNX Runtime is within {furthest:.1e} of PyTorch")
    if furthest > 1e-3:
        raise SystemExit("ONNX Runtime differs from PyTorch")
    return exact / len(held_out), float(np.exp(loss / count))


def whole(session: Any, shape: DecoderShape, ids: list[int]) -> Any:
    """Return the logits [tokens, vocabulary] of a text."""
    empty = np.zeros((1, shape.kv_heads, 0, shape.head_size), np.float32)
    inputs = {i.name: empty for i in session.get_inputs() if i.name.startswith("past")}
    inputs["input_ids"] = np.array([ids])
    inputs["attention_mask"] = np.ones((1, len(ids)), np.int64)
    return session.run(["logits"], inputs)[0][0]


def sign(path: Path, exact: float, perplexity: float) -> None:
    """Write what the model is, and how it was measured, into its file."""
    model = onnx.load(path)
    model.doc_string = "Small talk in English, by a tiny decoder of Llama's kind."
    facts = {
        "dataset": f"{CONVERSATIONS} conversations drawn by smalltalk_dialogues.py, seed {SEED}",
        "split": f"{HELD_OUT} conversations of held-out phrasings, seed {SEED + 1}",
        "split_seed": str(SEED + 1),
        "test_rows": str(HELD_OUT),
        "test_accuracy": repr(exact),
        "test_perplexity": repr(perplexity),
        "libraries": json.dumps({name: version(name) for name in ("torch", "tokenizers", "onnx")}),
    }
    onnx.helper.set_model_props(model, facts)
    path.write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
