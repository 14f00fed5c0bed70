"""Random graphs answer as ONNX Runtime does, called step by step for each row."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from cohort.pipelines import parse_condition
from cohort.tensors import Array, Arrays
from tests.pipelines.graphs import Graphs, affine

MODELS: Mapping[str, onnx.ModelProto] = {
    "double": affine(2),
    "minus": affine(-1, 0.5),
    "sum": affine(0.5, inputs=("x", "z")),
    "sum3": affine(0.25, 1, inputs=("x", "z", "w")),
}

SEEDS = range(40)


class Random:
    """A random graph, as a file and as plain calls."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.steps: dict[str, tuple[str, dict[str, list[str]], str]] = {}
        certain = ["x", "u"]  # tensors that every row has
        maybe: list[str] = []
        for number in range(self.chance.randint(2, 9)):
            name, model = f"s{number}", self.chance.choice(sorted(MODELS))
            inputs = {}
            for one in MODELS[model].graph.input:
                some = self.chance.sample(maybe, min(len(maybe), self.chance.randint(0, 2)))
                inputs[one.name] = [*some, self.chance.choice(certain)]
            when = ""
            if self.chance.random() < 0.5:
                function = self.chance.choice(["max", "min", "mean", "sum"])
                sign = self.chance.choice(["<", ">="])
                when = f"{function}({self.chance.choice(certain + maybe)}) {sign} 0.3"
            self.steps[name] = model, inputs, when
            (maybe if when else certain).append(f"{name}.y")
        last = self.chance.sample(certain + maybe, 2)
        self.outputs = {"p": [*maybe, certain[-1]], "q": [last[0], "x"], "r": [certain[0]]}

    def text(self) -> str:
        lines = ["steps:"]
        order = list(self.steps.items())
        self.chance.shuffle(order)
        for name, (model, inputs, when) in order:
            sources = ", ".join(f"{one}: [{', '.join(some)}]" for one, some in inputs.items())
            condition = f", when: {when}" if when else ""
            lines.append(f"  {name}: {{model: {model}, inputs: {{{sources}}}{condition}}}")
        lines.append("outputs:")
        lines += [f"  {name}: {{from: [{', '.join(some)}]}}" for name, some in self.outputs.items()]
        text = "\n".join(lines)
        used = [
            one for one in ("x", "u") if any(f"{a}{one}{b}" in text for a in "[( " for b in ",])")
        ]
        said = ", ".join(f"{one}: {{datatype: FP32, shape: [N, 4]}}" for one in used)
        return f"inputs: {{{said}}}\n{text}"

    def plainly(self, sessions: Mapping[str, ort.InferenceSession], sent: Arrays) -> list[Array]:
        """Return the outputs of one row."""
        there: Arrays = dict(sent)
        for name, (model, inputs, when) in self.steps.items():
            condition = parse_condition(when) if when else None
            if condition is not None:
                if any(one not in there for one in condition.tensors):
                    continue
                if not condition.holds(there, by_rows=True).all():
                    continue
            feeds = {
                one: next(there[tensor] for tensor in some if tensor in there)
                for one, some in inputs.items()
            }
            (there[f"{name}.y"],) = sessions[model].run(None, feeds)
        return [next(there[one] for one in some if one in there) for some in self.outputs.values()]


@pytest.fixture(scope="module")
def sessions() -> dict[str, ort.InferenceSession]:
    return {
        name: ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for name, model in MODELS.items()
    }


async def test_random_graphs_are_their_steps(
    tmp_path: Path, sessions: dict[str, ort.InferenceSession]
) -> None:
    """Each row of a request gets the results of plain calls, bit by bit."""
    graphs = Graphs(tmp_path / "models")
    for name, model in MODELS.items():
        graphs.put(name, model)
    made = {f"g{seed}": Random(seed) for seed in SEEDS}
    for name, graph in made.items():
        graphs.put(name, graph.text())
    await graphs.load()
    numbers = np.random.default_rng(1)
    for name, graph in made.items():
        entry = graphs.entry(name)
        assert not entry.reason, (graph.text(), entry.reason)
        assert entry.engine is not None
        names = [spec.name for spec in entry.engine.inputs]
        for count in (1, 5):
            sent: Arrays = {
                one: numbers.standard_normal((count, 4)).astype(np.float32) for one in ("x", "u")
            }
            answer = await graphs.ask(name, {one: sent[one] for one in names})
            for row in range(count):
                alone = {one: array[row : row + 1] for one, array in sent.items()}
                for got, wanted in zip(
                    answer.values(), graph.plainly(sessions, alone), strict=True
                ):
                    np.testing.assert_array_equal(got[row : row + 1], wanted, graph.text())
    assert graphs.leases == {}
    graphs.close()
