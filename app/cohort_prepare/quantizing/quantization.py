"""Quantize a model with one or all suitable recipes, measure each, and choose one or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cohort.session import ORT_VERSION
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.onnx_files import (
    model_digest,
    model_size,
    read_onnx,
    temporary_folder,
    write_onnx,
)
from cohort_prepare.quantizing.deciding import decide
from cohort_prepare.quantizing.job_runner import JobRunner
from cohort_prepare.quantizing.measuring import MeasuredPair
from cohort_prepare.quantizing.quality import Quality
from cohort_prepare.quantizing.recipes import (
    FAMILIES,
    Float16Recipe,
    GraphFacts,
    Recipe,
    StaticRecipe,
    excluding,
    recipe_name,
    suitable,
    sums_overflow,
)
from cohort_prepare.quantizing.results import Candidate, Quantized, QuantizeOptions, align
from cohort_prepare.quantizing.search import SearchResult
from cohort_prepare.quantizing.verdict import closest, why_unacceptable
from cohort_prepare.quantizing.work import Build
from cohort_prepare.steps import StepDifference, StepRecord, add_step


def quantize_model(
    model: Path, out: Path, options: QuantizeOptions, *, on_progress: Callable[[str], None]
) -> Quantized:
    """Quantize `model`, and write the chosen recipe's model, with a record of the step, to `out`.

    A named recipe is chosen unless its outputs lose more than allowed. "auto" chooses the fastest
    that pays, or none. If no recipe is chosen, nothing is written.

    on_progress: Called with progress messages.

    Raises Misused, Rejected if nothing can be quantized or a named recipe fails, and OSError.
    """
    _check(model, out, options)
    with temporary_folder(out.parent) as folder:
        bench = _Bench(
            model, options, JobRunner(folder.absolute(), options.job_seconds, on_progress)
        )
        candidates = bench.try_recipes()
        result = decide(
            bench.facts, options, candidates, calibration_rows=bench.rows, notes=bench.notes
        )
        if result.acceptable:
            chosen = next(one for one in candidates if one.name == result.chosen)
            _write(model, chosen, out)
    return result


def _check(model: Path, out: Path, options: QuantizeOptions) -> None:
    if out.exists() and out.samefile(model):
        raise Misused(f"--out {out} is the model itself: use another file")
    if options.recipe == "static" and options.calibration is None:
        raise Misused(
            "the static recipe needs --calibration with at least a hundred realistic rows. Use a "
            ".npz file with inputs by name, a .jsonl file of requests, or a folder of those"
        )
    if options.labels is not None and options.inputs is None and options.calibration is None:
        raise Misused("--labels needs --inputs")
    for path in (options.calibration, options.inputs, options.labels):
        if path is not None and not path.exists():
            raise Misused(f"{path} not found")


class _Bench:
    """Tries recipes on one model."""

    def __init__(self, model: Path, options: QuantizeOptions, runner: JobRunner) -> None:
        self.model, self.options, self._runner = model.absolute(), options, runner
        self._folder = runner.folder
        self._prepared = runner.folder / "prepared" / "model.onnx"
        self._samples = _absolute(options.inputs or options.calibration)
        self._labels = _absolute(options.labels)
        self.rows = 0
        self.notes: list[str] = []
        self.facts = self._pre_process()

    def _pre_process(self) -> GraphFacts:
        self._prepared.parent.mkdir()
        facts = self._runner.ask(
            GraphFacts, "read_graph", "reading the model", model=self.model, out=self._prepared
        )
        if not facts.quantizable:
            operators = ", ".join(sorted(facts.operators))
            raise Rejected(
                "nothing to quantize: the model has no MatMul, Gemm, Conv or embedding with "
                f"constant weights; its operators are {operators}",
                {
                    "operators": dict(facts.operators),
                    "size_bytes": model_size(self.model),
                    "weight_bytes": facts.weight_bytes,
                    "recommended": None,
                },
            )
        return facts

    def try_recipes(self) -> list[Candidate]:
        """Return all suitable recipes, measured."""
        options = self.options
        families = FAMILIES if options.recipe == "auto" else (options.recipe,)
        if options.calibration is None:
            families = tuple(family for family in families if family != "static")
            if options.recipe == "auto":
                self.notes.append("the static recipe was not tried: it needs --calibration")
        seven_bits = sums_overflow() if options.seven_bits is None else options.seven_bits
        recipes = suitable(families, self.facts, options.methods, seven_bits=seven_bits)
        if not recipes:
            raise Rejected(f"the {options.recipe} recipe needs a model with a MatMul or Gemm")
        static = [one for one in recipes if isinstance(one, StaticRecipe)]
        candidates = [self._try(one) for one in recipes if not isinstance(one, StaticRecipe)]
        if static:
            candidates.append(self._attempt(static[0], lambda: self._static(static)))
        return align(candidates)

    def _try(self, recipe: Recipe) -> Candidate:
        def work() -> Candidate:
            path, quality = self._build(recipe)
            return self._measured(recipe, path, quality)

        return self._attempt(recipe, work)

    def _attempt(self, recipe: Recipe, work: Callable[[], Candidate]) -> Candidate:
        """Return the candidate, or its failure; raise the failure of a named recipe."""
        try:
            return work()
        except Rejected as error:
            if self.options.recipe != "auto":
                raise
            return Candidate(recipe, failure=str(error))

    def _static(self, recipes: list[StaticRecipe]) -> Candidate:
        """Apply the static recipe with the calibration method whose outputs are closest."""
        methods = tuple(one.method for one in recipes)
        self.rows = self._runner.ask(
            int,
            "calibrate",
            "calibrating",
            prepared=self._prepared,
            samples=_absolute(self.options.calibration),
            methods=methods,
            folder=self._folder,
        )
        built = {one.method: (one, *self._build(one)) for one in recipes}
        qualities: dict[str, Quality] = {name: quality for name, (_, _, quality) in built.items()}
        chosen = built[
            next(one for one in methods if one == closest(qualities, self.options.limits))
        ]
        return replace(self._measured(*chosen), methods=qualities)

    def _measured(self, recipe: Recipe, path: Path, quality: Quality) -> Candidate:
        """Measure a model, without the nodes that lose too much quality."""
        found = None
        if self._may_search(recipe) and why_unacceptable(quality, self.options.limits):
            found = self._search(recipe)
            if found.excluded:
                recipe = excluding(recipe, found.excluded)
                path, _ = self._build(recipe)
        doing, building = f"measuring {recipe_name(recipe)}", self._building(recipe, path)
        pair = self._runner.ask(MeasuredPair, "measure", doing, building=building)
        return Candidate(recipe, path, pair, found=found)

    def _may_search(self, recipe: Recipe) -> bool:
        """Return True if there is time for a search; "auto" searches for static only."""
        wanted = self.options.recipe != "auto" or isinstance(recipe, StaticRecipe)
        return wanted and self.options.search_seconds > 0 and not isinstance(recipe, Float16Recipe)

    def _search(self, recipe: Recipe) -> SearchResult:
        folder = self._folder / f"search-{recipe_name(recipe)}"
        folder.mkdir()
        return self._runner.ask(
            SearchResult,
            "search",
            f"searching for nodes of {recipe_name(recipe)}",
            building=self._building(recipe, folder / "unused"),
            nodes=self.facts.quantizable,
            limits=self.options.limits,
            seconds=self.options.search_seconds,
        )

    def _build(self, recipe: Recipe) -> tuple[Path, Quality]:
        """Apply a recipe; return the model and the quality of its outputs."""
        out = self._folder / recipe_name(recipe) / "model.onnx"
        out.parent.mkdir()
        doing = f"applying {recipe_name(recipe)}"
        building = self._building(recipe, out)
        return out, self._runner.ask(Quality, "build_and_compare", doing, building=building)

    def _building(self, recipe: Recipe, out: Path) -> Build:
        rows = self._samples, self._labels
        return Build(recipe, self._prepared, self.model, self._folder, out, *rows)


def _write(model: Path, chosen: Candidate, out: Path) -> None:
    if chosen.path is None or chosen.pair is None:
        raise Rejected("there is no model to write")
    from onnx import __version__ as onnx_version

    made = read_onnx(chosen.path)
    recipe, quality = chosen.recipe, chosen.pair.quality
    given: dict[str, str | int | float | bool | None] = {"recipe": recipe.family}
    for key in ("method", "weights", "activations", "reduce_range", "block_size"):
        if (value := getattr(recipe, key, None)) is not None:
            given[key] = value
    if recipe.excluded:
        given["excluded"] = ", ".join(recipe.excluded)
    step = StepRecord(
        "quantize",
        f"{chosen.name}",
        versions={"onnx": onnx_version, "onnxruntime": ORT_VERSION},
        options=given,
        before=model_digest(model),
        difference=StepDifference(quality.max_absolute, quality.max_relative),
    )
    add_step(made, step)
    write_onnx(made, out)


def _absolute(path: Path | None) -> Path | None:
    """Return an absolute path, since child processes have other working folders."""
    return None if path is None else path.absolute()
