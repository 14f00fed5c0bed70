"""A text encoder and its tokenizer, from training to embeddings over HTTP: see README.md."""

import asyncio
import os
import re
import shutil
import time
from pathlib import Path

import httpx
import numpy as np
import torch
from sklearn import datasets
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn

URL = os.environ.get("SERVER", "http://localhost:8000")

# The texts: scikit-learn's descriptions of its data sets. The subject of each is what it is about.
subjects = ["iris", "wine", "digits", "diabetes", "breast_cancer", "linnerud"]
texts, labels = [], []
for label, subject in enumerate(subjects):
    description = getattr(datasets, f"load_{subject}")()["DESCR"]
    for text in re.split(r"\n\s*\n|\.\s", description):
        if len(text.split()) > 3:
            texts.append(" ".join(text.split()))
            labels.append(label)

# A tokenizer, learned from them.
tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
tokenizer.normalizer = normalizers.BertNormalizer()
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
tokenizer.decoder = decoders.WordPiece()
tokenizer.train_from_iterator(
    texts, trainers.WordPieceTrainer(vocab_size=1000, special_tokens=["[PAD]", "[UNK]"])
)
tokenizer.enable_truncation(128)


class Encoder(nn.Module):
    """A transformer of two layers; the embedding of a text is the mean over its tokens."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokenizer.get_vocab_size(), width)
        self.places = nn.Embedding(128, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.tokens(input_ids) + self.places(places)
        hidden = self.layers(hidden, src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def tokenize(batch: list[str]) -> dict[str, torch.Tensor]:
    """The ids and the mask of some texts, [texts, tokens] of INT64, padded to the longest."""
    ids = [torch.tensor(one.ids) for one in tokenizer.encode_batch(batch)]
    padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    masks = nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    return {"input_ids": padded, "attention_mask": masks}


# Train it to distinguish the subjects.
torch.manual_seed(0)
encoder, head = Encoder(), nn.Linear(64, len(subjects))
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.001)
tokens, targets = tokenize(texts), torch.tensor(labels)
for _ in range(30):
    optimizer.zero_grad()
    nn.functional.cross_entropy(10 * head(encoder(**tokens)), targets).backward()
    optimizer.step()
encoder.eval()

# Export, to where the server looks, with the configuration that lets texts run together.
file = Path("models/encoder/1/model.onnx")
file.parent.mkdir(parents=True, exist_ok=True)
shutil.copy(Path(__file__).with_name("config.yaml"), "models/encoder/config.yaml")
free = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens", max=128)}
torch.onnx.export(
    encoder,
    kwargs=tokenize(texts[:2]),
    f=file,
    output_names=["sentence_embedding"],
    dynamic_shapes={"input_ids": free, "attention_mask": free},
    external_data=False,  # one file, weights and all; fine up to 2 GB
)

# The server finds it within seconds.
for _ in range(150):
    if httpx.get(f"{URL}/v2/models/encoder/ready").status_code == 200:
        break
    time.sleep(0.2)


async def embed(client: httpx.AsyncClient, text: str) -> list[float]:
    """Return the embedding that the server gives for a text."""
    inputs = {name: tensor.tolist() for name, tensor in tokenize([text]).items()}
    answer = await client.post("/predict", json={"model": "encoder", "inputs": inputs})
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"]["sentence_embedding"][0]


async def embed_all() -> list[list[float]]:
    """Send each text in a separate request, all at once, as many callers would."""
    async with httpx.AsyncClient(base_url=URL, timeout=30) as client:
        return await asyncio.gather(*(embed(client, text) for text in texts))


# Send, and compare with the encoder's output for each text alone.
served = np.array(asyncio.run(embed_all()))
with torch.no_grad():
    alone = np.concatenate([encoder(**tokenize([text])).numpy() for text in texts])
np.testing.assert_allclose(served, alone, rtol=0, atol=1e-5)

batching = httpx.get(f"{URL}/models/encoder").json()["versions"][0]["batching"]
nearest = (served @ served.T - 2 * np.eye(len(texts))).argmax(axis=1)
alike = np.mean(np.array(labels)[nearest] == labels)
lengths = [len(one.ids) for one in tokenizer.encode_batch(texts)]
print(f"{len(texts)} texts of {min(lengths)} to {max(lengths)} tokens: embeddings agree")
print(f"{alike:.0%} are nearest to a text of the same subject")
print(f"run together: {batching['on']}")
