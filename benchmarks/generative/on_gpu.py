"""Language models on CUDA: `python -m benchmarks.gpu --generative [--dry-run]`.

Measures FP16 and INT4 with Cohort's engine, onnxruntime-genai's loop and its Engine, also with
paged attention. It stops after nine minutes, and writes what it has to $OUT/generative-gpu.md.
`--dry-run` does the same steps on the CPU with a tiny model, and claims nothing about GPUs.
The report lists failures, and nodes that CUDA leaves to the CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic

import numpy as np

from benchmarks.generative.environments import GENAI, PEERS, PythonPackages
from benchmarks.generative.shapes import draw_prompts, parameters
from benchmarks.generative.workers import Answered, Candidate, Worker
from benchmarks.machine import describe
from benchmarks.servers import BUILD
from models.decoder import write_decoder
from models.decoder_graph import DecoderShape

SECONDS = 540
SHAPE = DecoderShape(32_000, 1024, 24, 16, 8, 64, 2816, 1024)
TINY = DecoderShape(512, 128, 2, 4, 2, 32, 384, 512)
CALLERS = (1, 4, 16, 64)
LATE_CALLERS, LATE_AFTER = 4, 8

GENAI_CUDA = PythonPackages(
    "generative-genai-cuda",
    ("onnxruntime-genai-cuda==0.18.0", "onnxruntime-gpu[cuda,cudnn]==1.31.1", "numpy"),
)
BUILDER = PythonPackages(
    "generative-builder",
    (
        *("onnxruntime-genai==0.18.0", "onnxruntime==1.31.1", "torch==2.13.*"),
        *("transformers==5.*", "onnx==1.21.*", "onnx-ir>=0.2", "protobuf<7"),
    ),
)


@dataclass
class Run:
    """One run of the script.

    dry: True on the CPU with a tiny model.
    ends: The time when no further measurement starts.
    notes: Failures and fallbacks, in order.
    """

    dry: bool
    ends: float = field(default_factory=lambda: monotonic() + SECONDS)
    notes: list[str] = field(default_factory=list)

    @property
    def shape(self) -> DecoderShape:
        """The model's sizes."""
        return TINY if self.dry else SHAPE

    def has_time(self, doing: str) -> bool:
        """Return True if there is time left; else note what was left out."""
        if monotonic() < self.ends:
            return True
        self.notes.append(f"{doing}: left out, the time was over")
        return False


def measure_on_gpu(*, dry: bool) -> None:
    """Measure, print the report, and write it to $OUT if that is set."""
    run = Run(dry)
    lines = [*_head(run)]
    for precision in ("FP16", "INT4"):
        shown = [f"## {precision}", "", *_measure(run, precision)]
        print("\n".join(shown), flush=True)
        lines += shown
    lines += ["## Failures and fallbacks", "", *(f"- {note}" for note in run.notes), ""]
    print("\n".join(lines[-len(run.notes) - 3 :]))
    if out := os.environ.get("OUT"):
        (Path(out) / "generative-gpu.md").write_text("\n".join(lines), encoding="utf-8")


def _head(run: Run) -> Iterator[str]:
    gpu = "a dry run on the CPU; no figure here is a GPU's"
    if not run.dry:
        with suppress(OSError, subprocess.CalledProcessError):
            query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
            gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    yield from ("# Language models on a GPU", "")
    yield f"Machine: {gpu}; {describe()['machine']}; {describe()['versions']}."
    yield f"The model has {parameters(run.shape) / 1e6:,.1f} million random weights."
    yield ""


def _measure(run: Run, precision: str) -> Iterator[str]:
    folder = BUILD / "generative" / f"{'dry' if run.dry else 'gpu'}-{precision.lower()}" / "1"
    if not (folder / "tokenizer_config.json").exists():
        write_decoder(folder, run.shape, quantize=precision == "INT4", dtype=np.float16)
    provider = "cpu" if run.dry else "cuda"
    config = folder / "genai_config.json"
    described = json.loads(config.read_text())
    options = [] if run.dry else [{"cuda": {}}]
    described["model"]["decoder"]["session_options"]["provider_options"] = options
    config.write_text(json.dumps(described, indent=2))
    home = GENAI if run.dry else GENAI_CUDA
    home = None if find_spec("onnxruntime_genai") else home
    yield "| candidate | callers | tokens/s | range | x 1 caller | TTFT p50 ms | TBT p50 ms | p99 |"
    yield "|---|---|---|---|---|---|---|---|"
    for candidate, place in (
        (Candidate("Cohort, in process", "cohort_engine.py"), folder),
        (Candidate("onnxruntime-genai, loop", "genai_loop.py", home), folder),
        (Candidate("onnxruntime-genai, Engine", "genai_engine.py", home), folder),
        (Candidate("onnxruntime-genai, paged Engine", "genai_engine.py", home), None),
    ):
        name = f"{candidate.name}, {precision}"
        if not run.has_time(name):
            continue
        try:
            path = place or _write_paged(run, precision, folder / "tokenizer.json")
            worker = Worker(candidate, path, path, 2 if run.dry else 8, provider)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            run.notes.append(f"{name} did not start: {' '.join(str(error).split())[:300]}")
            continue
        run.notes.append(f"{name}: {worker.ready}")
        try:
            yield from _rows(run, candidate.name, worker)
        except (RuntimeError, OSError) as error:
            run.notes.append(f"{name} failed: {' '.join(str(error).split())[:300]}")
        finally:
            worker.close()
    yield ""


def _rows(run: Run, name: str, worker: Worker) -> Iterator[str]:
    draws, alone = Random(7), 0.0
    tokens = 16 if run.dry else 64

    def ask(callers: int, join: int | None) -> Answered:
        prompts = draw_prompts(draws, callers, 64, run.shape.vocabulary)
        return worker.ask(prompts, tokens, join)

    for callers in CALLERS:
        if not run.has_time(f"{name} with {callers} callers"):
            return
        ask(callers, None)  # shapes are planned, and memory is taken
        rounds = [ask(callers, None) for _ in range(1 if run.dry else 3)]
        rates = [callers * tokens / one.seconds for one in rounds]
        alone = alone or median(rates)
        first = np.median([at for one in rounds for at in one.first]) * 1000
        gaps = np.percentile([gap for one in rounds for gap in one.between], (50, 99)) * 1000
        yield (
            f"| {name} | {callers} | {median(rates):,.0f} | {min(rates):,.0f}-{max(rates):,.0f} "
            f"| {median(rates) / alone:.1f} | {first:,.1f} | {gaps[0]:,.2f} | {gaps[1]:,.2f} |"
        )
    steps = ask(LATE_CALLERS, LATE_AFTER).late_steps
    run.notes.append(f"{name}: a late joiner waits {steps:.0f} steps")


def _write_paged(run: Run, precision: str, tokenizer: Path) -> Path:
    """Build the model for the Engine's paged attention, which needs CUDA to run."""
    out = BUILD / "generative" / f"{'dry' if run.dry else 'gpu'}-paged-{precision.lower()}"
    if not (out / "genai_config.json").exists():
        shape = out.with_suffix(".json")
        shape.write_text(json.dumps(asdict(run.shape)))
        program = PEERS / "write_paged.py"
        here = all(map(find_spec, ("torch", "transformers", "onnxruntime_genai")))
        command = [sys.executable, str(program)] if here else BUILDER.command(program)
        arguments: Sequence[str] = (str(shape), str(out), precision.lower(), str(tokenizer))
        environment: Mapping[str, str] = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"paged model not built: {done.stderr[-300:]}")
    return out
