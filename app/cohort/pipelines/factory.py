"""Factory of engines for versions that contain a pipeline.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohort.errors import (
    CohortError,
    LoadFailed,
    MembersUnfit,
    ModelNotFound,
    NotReady,
    quoted,
)
from cohort.pipelines.document import Pipeline, parse_pipeline, parse_processing
from cohort.pipelines.engine import PipelineEngine, PreparedPipeline
from cohort.pipelines.graph import Graph, build_graph
from cohort.pipelines.steps import StepEnded, facts_of
from cohort.pipelines.wiring import MemberFacts, connect
from cohort.processing import Asked
from cohort.registry import Readable, Site, Source
from cohort.repository import (
    METADATA,
    PIPELINE_FILE,
    ConfigProblems,
    ModelConfig,
    ProcessingConfig,
    Published,
    Trust,
    read_published,
    read_text,
    verify_opened,
)
from cohort.session import CancellationToken, Digests, Signature

STATE_IN_STEP = (
    "has state, and steps are of no sequence: give the state to the pipeline's callers, by a "
    "version whose config has no state"
)

CountSteps = Callable[[str, str], Callable[[StepEnded], None]]
"""Returns the observer of steps for a model's name and version."""


class PipelineEngines:
    """Factory of engines from `pipeline.yaml`. Implements `EngineFactory`.

    models: Returns the served models.
    count: Returns the observer that counts the steps of a version.
    trust: Keys, one of which must have signed a version; default None: no signature is required.
    """

    file = PIPELINE_FILE

    def __init__(
        self, models: Callable[[], Readable], *, count: CountSteps, trust: Trust | None = None
    ) -> None:
        self._models, self._count, self._trust = models, count, trust
        self._circles = Circles()

    def open(self, source: Source, token: CancellationToken) -> OpenedPipeline:
        """See `EngineFactory`. Raises MembersUnfit if its models are missing or do not fit."""
        if source.problem or source.config is None:
            raise LoadFailed(source.problem or "its config cannot be read")
        token.enter("reading its files")
        digests, path = Digests(), source.path
        try:
            published = read_published(path.parent, digests, trust=self._trust, file=PIPELINE_FILE)
            pipeline, graph = read_pipeline(path)
            digest = digests.of(path)
            if published.manifest is not None:
                named = [file for file in files_named(path) if (path.parent / file).exists()]
                opened = {file: digests.of(path.parent / file) for file in named}
                verify_opened(published.manifest, {PIPELINE_FILE: digest, **opened})
        except OSError as error:
            raise LoadFailed(f"its {path.name} cannot be read: {error.strerror}") from error
        try:
            self._circles.check(source.model or path.parent.name, path, graph)
        except LoadFailed as error:
            raise MembersUnfit(str(error), needs=graph.needs) from error
        prepared = self._connect(pipeline, graph, source.config, digest, published)
        return OpenedPipeline(prepared, self)

    def _connect(
        self,
        pipeline: Pipeline,
        graph: Graph,
        config: ModelConfig,
        digest: str,
        published: Published,
    ) -> PreparedPipeline:
        missing: list[str] = []

        def look_up(model: str, version: int | None) -> MemberFacts:
            try:
                models = self._models()
                if model not in models.catalog:  # also while the first models are loaded
                    raise ModelNotFound(model, models.catalog)
                entry = models.find(model, None if version is None else str(version))
                if entry.engine is None or entry.engine.by_tensors is None:
                    raise NotReady(f"model {quoted(model)} does not accept tensors")
                if entry.engine.describe().by_sequence:
                    raise NotReady(f"model {quoted(model)} {STATE_IN_STEP}")
            except CohortError as error:
                missing.append(model)
                raise LoadFailed(str(error)) from error
            return facts_of(entry.engine)

        try:
            wiring = connect(pipeline, look_up, graph)
        except LoadFailed as error:
            raise MembersUnfit(str(error), needs=graph.needs, missing=missing) from error
        return PreparedPipeline(pipeline, wiring, config.timeout(), digest, published)

    def start(self, prepared: PreparedPipeline, site: Site) -> PipelineEngine:
        """Serve a pipeline."""
        return PipelineEngine(
            prepared,
            site,
            catalog=lambda: self._models().catalog,
            observe=self._count(site.model, str(site.number)),
        )

    def check_engines(self) -> None:
        """No-op: the models are checked by their own factories."""

    def rest(self) -> None:
        """No-op: it holds nothing."""

    def close(self) -> None:
        """No-op: it has no background work."""


@dataclass(frozen=True, slots=True)
class OpenedPipeline:
    """A pipeline that fits its models. Implements `OpenedVersion`."""

    _prepared: PreparedPipeline
    _engines: PipelineEngines

    @property
    def signature(self) -> Signature:
        """Return the inputs and outputs that clients see."""
        return Signature(self._prepared.wiring.inputs, self._prepared.wiring.outputs)

    @property
    def properties(self) -> Mapping[str, str]:
        """Return no properties, because there is no model file."""
        return {}

    @property
    def published(self) -> Published:
        """Return the contents and the signer of the manifest."""
        return self._prepared.published

    def start(self, site: Site) -> PipelineEngine:
        """See `OpenedVersion`."""
        return self._engines.start(self._prepared, site)

    def close(self) -> None:
        """No-op: nothing is open."""


def read_pipeline(path: Path) -> tuple[Pipeline, Graph]:
    """Read the pipeline at `path` without its models. Raises LoadFailed and OSError."""
    try:
        text = read_text(path, path.name)
        if text is None:
            raise LoadFailed(f"its {path.name} is gone", transient=True)
        pipeline = parse_pipeline(text)
    except ConfigProblems as error:
        raise LoadFailed("; ".join(map(_in_words, error.problems))) from error
    return pipeline, build_graph(pipeline)


def asked_by_pipeline(source: Source) -> Asked | None:
    """Return the processing that a pipeline and its config request; None if they request none.

    Raises LoadFailed if the pipeline has an invalid key.
    """
    processing, config = read_processing(source.path), source.config
    if config is not None:
        processing = ProcessingConfig(
            {**config.inputs, **processing.inputs}, {**config.outputs, **processing.outputs}
        )
    name = source.model or source.path.parent.name
    if not (processing.inputs or processing.outputs):
        return None
    return Asked(processing, f"{name}/{PIPELINE_FILE}")


def read_processing(path: Path) -> ProcessingConfig:
    """Read the processing of inputs and outputs from the pipeline at `path`. Raises LoadFailed."""
    try:
        text = read_text(path, path.name)
        return ProcessingConfig() if text is None else parse_processing(text)
    except ConfigProblems as error:
        raise LoadFailed("; ".join(map(_in_words, error.problems))) from error


def _in_words(problem: object) -> str:
    """Format a problem of the file, with the step named as in other messages."""
    text = str(problem).removeprefix(f"{PIPELINE_FILE}: ")
    if text.startswith("steps.") and (rest := text.removeprefix("steps.")):
        step, dot, inside = rest.partition(".")
        name, colon, sentence = rest.partition(": ")
        if dot and len(step) < len(name):
            return f"step {quoted(step)}: {inside}"
        return f"step {quoted(name)}: {sentence}" if colon else text
    return text


def files_named(path: Path) -> Sequence[str]:
    """Return the files next to the pipeline at `path` that it names. Raises LoadFailed."""
    processing = read_processing(path)
    names: list[object] = []
    for taken in processing.inputs.values():
        names += [taken.tokenizer, taken.categories]
    for given in processing.outputs.values():
        names += [given.labels, given.detections.labels if given.detections else None]
    files = [name for name in names if isinstance(name, str) and name != METADATA]
    return [name for name in dict.fromkeys(files) if name and Path(name).name == name]


class Circles:
    """The models that each pipeline runs; used to reject pipelines that need themselves."""

    def __init__(self) -> None:
        self._members: dict[str, dict[Path, Mapping[str, str]]] = {}

    def check(self, model: str, path: Path, graph: Graph) -> None:
        """Record a pipeline, on any thread. Raises LoadFailed if it needs itself."""
        steps = {step.model: step.name for step in reversed([*graph.steps.values()])}
        self._members.setdefault(model, {})[path] = steps
        for member, step in steps.items():
            if way := self._way(member, model, frozenset()):
                names = " → ".join(map(quoted, (model, *way)))
                raise LoadFailed(
                    f"step {quoted(step)}: it depends on this pipeline itself, through {names}; "
                    "run another model here"
                )

    def _way(self, start: str, end: str, seen: frozenset[str]) -> tuple[str, ...]:
        if start == end:
            return (end,)
        for path, steps in list(self._members.get(start, {}).items()):
            if not path.exists():  # its version is gone
                self._members[start].pop(path, None)
                continue
            for member in steps.keys() - seen:
                if way := self._way(member, end, seen | {start}):
                    return (start, *way)
        return ()
