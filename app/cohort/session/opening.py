"""Open a model on a provider chain: try each link in order."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from cohort.errors import LoadFailed, quoted
from cohort.model_file.model import ModelFile
from cohort.model_file.protobuf import DeclaredShape
from cohort.session.assignment import count_nodes
from cohort.session.cancellation import CancellationToken
from cohort.session.child_runs import ChildRuns
from cohort.session.class_maps import Classes, with_columns
from cohort.session.declared_classes import declared_classes, with_classes
from cohort.session.declared_inputs import declared_inputs
from cohort.session.divisions import with_safe_divisions
from cohort.session.failures import sentence
from cohort.session.memory import limit_provider, limit_session, limited_memory
from cohort.session.model_files import CHANGED, ModelFiles
from cohort.session.optimized_graph import MAX_MODEL_BYTES, OptimizedGraph
from cohort.session.providers import CPU, Provider, ProviderPolicy, refusal
from cohort.session.room import ANY_ROOM, Room
from cohort.session.rules import ANY_MODEL, ModelRules
from cohort.session.running import Fallback, Placement, Session
from cohort.session.runtime import FATAL_ONLY, ort
from cohort.session.sequence_parts import with_parts
from cohort.session.signatures import offered
from cohort.session.thread_priority import with_low_priority
from cohort.system.processor import available_memory
from cohort.tensors import BY_ORT, TensorSpec

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""ONNX Runtime's key for the folder of external weights, for a model passed as bytes."""

COPIES = 3
"""Copies of the model in a child's memory limit, in addition to a quarter of free memory."""

SPIN_MICROSECONDS = "50"
"""Longer than the time between two nodes, shorter than the time between two requests."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """`session:` in a model's config: options of ONNX Runtime's session.

    intra_op_threads: Threads of a CPU run; 0 lets ONNX Runtime choose; default None: 1, or more for
        runs alone on the machine, if measured faster.
    graph_optimization: Level of ONNX Runtime's graph optimization; default "all".
    optimized_cache: Keep the optimized graph in COHORT_CACHE, for faster starts on the CPU; default
        True.
    custom_op_libraries: Custom operator libraries: files in folders of COHORT_CUSTOM_OPS, or
        `extensions` for an installed onnxruntime-extensions; default none.
    """

    intra_op_threads: int | None = None
    graph_optimization: Literal["all", "extended", "basic", "none"] = "all"
    optimized_cache: bool = True
    custom_op_libraries: tuple[str, ...] = ()

    @property
    def one_thread(self) -> bool:
        """True if a run on the CPU has one thread."""
        return self.intra_op_threads in (None, 1)


class Opener(ModelFiles):
    """Opener of one model file, once or several times, that also computes its digest.

    path: the model, `…/<model>/<version>/model.onnx`.
    chain: providers in order of preference; the first that can serve the model is used. Default
        None: the default chain of the `rules`.
    policy: `prefer` (default) tries the chain in order and records reasons in `placement` of the
        session. Under `require`, the first link must take at least one node; under `require_all`,
        every node. Nodes that the active provider leaves go to later links, and finally to the CPU.
    options: `session:` of the model's config.
    memory_limit_mb: the maximum megabytes for runs of a session, excluding its weights, on the CPU
        and on CUDA; default None: no limit.
    max_output_bytes: the maximum bytes of the texts of a run; default: no limit.
    decoder_seconds: the time limit of a run, for a model that decodes files in its graph. Such a
        model then runs in a separate process; default None: it runs in this one.
    rules: the limits of any model; default: any size, no custom operators.
    cache: the folder for optimized graphs; None (default) keeps none.
    room: the memory available for opening models; default: no limit.
    token: cancels opening; default: it cannot be cancelled.
    """

    def __init__(
        self,
        path: Path,
        *,
        chain: Sequence[Provider] | None = None,
        policy: ProviderPolicy = "prefer",
        options: SessionOptions = SessionOptions(),
        memory_limit_mb: int | None = None,
        max_output_bytes: float = float("inf"),
        decoder_seconds: float | None = None,
        rules: ModelRules = ANY_MODEL,
        cache: Path | None = None,
        room: Room = ANY_ROOM,
        token: CancellationToken | None = None,
    ) -> None:
        super().__init__(path, rules, options.custom_op_libraries)
        self.memory_limit_mb = memory_limit_mb
        self.max_output_bytes = max_output_bytes
        self.decoder_seconds = decoder_seconds
        self._default = rules.default_chain if chain is None else None
        self.chain = rules.default_chain.links if chain is None else tuple(chain)
        self.policy = policy
        self.options, self.cache, self.room = options, cache, room
        self.token = token or CancellationToken()

    def open(self, exclusive_threads: int = 0) -> Session:
        """Open a session on the first link of the chain that can serve the model.

        With `exclusive_threads`, runs use this number of threads, which spin between a run's nodes:
        for runs that start while nothing else runs. Raises only WorkCancelled, or LoadFailed with a
        sentence for the operator.
        """
        if self.closed:
            raise LoadFailed("what it was opened on is kept no longer")
        with self.room.take(self.memory_needed(), self.token.check):
            return self._open(exclusive_threads)

    def _open(self, exclusive_threads: int) -> Session:
        chain, policy = self.chain, self.policy
        if not chain:
            raise LoadFailed("the provider chain is empty")
        if policy != "prefer" and self._default is not None and not self._default.asked:
            raise LoadFailed(
                f"provider_policy {policy} needs a list of required providers: set providers, such "
                "as [cuda, cpu], or COHORT_PROVIDERS"
            )
        model = self.read()
        runtime = _Runtime(self, external=bool(model.external), exclusive_threads=exclusive_threads)
        fallbacks: list[Fallback] = []
        for place, link in enumerate(chain):
            raw, reason, failure = None, refusal(link), None
            missed = bool(reason) or self._default is None
            if not reason:
                try:
                    raw = runtime.open(_links(chain[place:], policy), policy)
                except Exception as error:
                    failure = error
                    self.token.check()
                    reason = sentence(str(error)) or type(error).__name__
                    if policy == "require_all":
                        reason = runtime.left_over(link) or reason
                    if link.name == CPU:
                        raise LoadFailed(reason) from error
            if raw is not None:
                nodes = count_nodes(raw)
                reason = _shortfall(raw, link, nodes, policy)
                if not reason:
                    wanted = tuple(one.name for one in chain)
                    placement = Placement(wanted, link.name, tuple(fallbacks), nodes)
                    session = _session(raw, model, placement, link.device, self, exclusive_threads)
                    if not self.unchanged():
                        session.close()
                        raise LoadFailed(CHANGED)
                    return session
            if policy != "prefer":
                asked = f"provider_policy {policy} asks for {link.name}"
                raise LoadFailed(f"{asked}: {reason}") from failure
            fallbacks.append(Fallback(link.name, reason, missed))
        reasons = "; ".join(f"{fallback.provider}: {fallback.reason}" for fallback in fallbacks)
        hint = "" if CPU in {link.name for link in chain} else "; name cpu last to fall back on it"
        raise LoadFailed(f"no provider of the chain can serve it ({reasons}){hint}")

    def child(self, exclusive_threads: int) -> ChildRuns | None:
        """Return the process that runs the model; None if it runs in this process."""
        if self.decoder_seconds is None or not self.decoders:
            return None
        on_cpu = all(link.name == CPU for link in self.chain)
        memory = available_memory() // 4 + self.memory_needed() * COPIES
        return ChildRuns(
            self.model_name,
            seconds=self.decoder_seconds,
            memory=memory if on_cpu else 0,  # CUDA reserves addresses beyond any limit
            opening={
                "path": str(self.path.absolute()),
                "digests": self.file_digests(),
                "chain": [[one.name, dict(one.options)] for one in self.chain],
                "policy": self.policy,
                "options": asdict(self.options),
                "memory_limit_mb": self.memory_limit_mb,
                "max_output_bytes": self.max_output_bytes,
                "custom_ops": [str(folder.absolute()) for folder in self.rules.custom_ops],
                "max_nodes": self.rules.max_nodes,
                "exclusive_threads": exclusive_threads,
            },
        )

    def prefers_cpu(self) -> bool:
        """Return True if the CPU is the first available link of the chain."""
        return next((link.name for link in self.chain if not refusal(link)), CPU) == CPU


def open_session(
    path: Path,
    *,
    chain: Sequence[Provider] | None = None,
    policy: ProviderPolicy = "prefer",
    options: SessionOptions = SessionOptions(),
    rules: ModelRules = ANY_MODEL,
    cache: Path | None = None,
    exclusive_threads: int = 0,
) -> Session:
    """Open a model once. Raises only LoadFailed.

    path: The model's file.
    chain: The provider chain; default None: the default chain of the `rules`.
    policy: The rule for providers after the first; default "prefer".
    options: Options of ONNX Runtime's session.
    rules: The limits of any model; default: any size, no custom operators.
    cache: The folder of optimized graphs; default None: none are kept.
    exclusive_threads: The threads of a session for exclusive runs; default 0: not exclusive.
    """
    opener = Opener(path, chain=chain, policy=policy, options=options, rules=rules, cache=cache)
    return opener.open(exclusive_threads)


def _links(chain: Sequence[Provider], policy: ProviderPolicy) -> list[Provider]:
    """Return the links to pass to ONNX Runtime: the first, and those for the nodes it leaves."""
    first, *later = chain
    links = [first]
    if policy != "require_all":
        for link in later:
            if links[-1].name == CPU:
                break
            if not refusal(link) and link.name not in [one.name for one in links]:
                links.append(link)
        if links[-1].name != CPU:
            links.append(Provider(CPU))
    return links


def _shortfall(raw: Any, link: Provider, nodes: dict[str, int], policy: ProviderPolicy) -> str:
    """Return the reason why `link` does not satisfy `policy`, or ""."""
    if link.ort_name not in raw.get_providers():
        return "the runtime put the model on another provider and gave no reason"
    if nodes and not nodes.get(link.name):
        return "it runs no node of the model"
    others = {name: count for name, count in nodes.items() if name != link.name}
    if policy == "require_all" and others:
        left = ", ".join(f"{count} on {name}" for name, count in others.items())
        return f"it runs {nodes[link.name]} of {sum(nodes.values())} nodes ({left})"
    return ""


class _Runtime:
    """Opener of one model file on successive lists of providers, with the same options."""

    def __init__(self, opener: Opener, *, external: bool, exclusive_threads: int) -> None:
        self._path, self._options, self._cache = opener.path, opener.options, opener.cache
        self._digests, self._external, self._token = opener.digests, external, opener.token
        self._exclusive_threads = exclusive_threads
        self._memory_limit_mb, self._in_memory = opener.memory_limit_mb, opener.in_memory
        self._libraries, self._room = opener.libraries(), opener.room
        self._class_maps, self._divisions = opener.class_maps, opener.divisions
        self._parts = opener.parts

    def open(self, links: Sequence[Provider], policy: ProviderPolicy) -> Any:
        """Open ONNX Runtime's session on `links`. Raises any error of ONNX Runtime."""
        if links[0].name == CPU:
            with limited_memory(self._memory_limit_mb):
                return self._open_on_cpu()
        options = self._runtime_options()
        if policy == "require_all":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        with limited_memory(self._memory_limit_mb):
            return self._create(self._path, options, links)

    def left_over(self, link: Provider) -> str:
        """Describe the nodes that `link` leaves to others; `open` with require_all does not."""
        try:
            raw = self._create(self._path, self._runtime_options(), [link])
        except Exception:  # noqa: BLE001  then the known reason was a different one
            return ""
        return _shortfall(raw, link, count_nodes(raw), "require_all")

    def _open_on_cpu(self) -> Any:
        graph = self._graph()
        if graph is not None and (kept := graph.find()):
            try:
                return self._create(kept, self._runtime_options(optimized=True), [Provider(CPU)])
            except Exception:  # noqa: BLE001  created again below
                graph.discard(kept)
        start = time.monotonic()
        raw = self._create(self._path, self._runtime_options(), [Provider(CPU)])
        if graph is not None:
            with contextlib.suppress(Exception):  # a cache failure must not stop serving
                self._keep(graph, time.monotonic() - start)
        return raw

    def _graph(self) -> OptimizedGraph | None:
        """Return the place for this model's optimized graph; None if it must not be kept."""
        wanted = self._options
        if self._cache is None or not wanted.optimized_cache or self._external:
            return None
        if wanted.graph_optimization == "none":
            return None
        try:
            if self._path.stat().st_size > MAX_MODEL_BYTES:
                return None
            # The graph does not depend on the number of threads.
            wanted = replace(wanted, intra_op_threads=None)
            settings = repr(wanted) + (" columns" if self._class_maps else "")
            settings += " parts" if self._parts else ""
            settings += " divisions" if self._divisions.bits else ""
            return OptimizedGraph(self._cache, self._path, settings, self._digests)
        except OSError:
            return None

    def _keep(self, graph: OptimizedGraph, opening: float) -> None:
        if not graph.worth_keeping(opening) or not self._room.fits(graph.memory_needed):
            return
        file = graph.reserve()
        try:
            options = self._runtime_options()
            options.optimized_model_filepath = str(file)
            self._create(self._path, options, [Provider(CPU)])
            graph.keep(file)
        finally:
            graph.discard(file)

    def _runtime_options(self, *, optimized: bool = False) -> Any:
        wanted = self._options
        options = ort.SessionOptions()
        options.log_severity_level = FATAL_ONLY
        threads = self._exclusive_threads or wanted.intra_op_threads
        options.intra_op_num_threads = 1 if threads is None else threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        level = "none" if optimized else wanted.graph_optimization
        options.graph_optimization_level = _LEVELS[level]
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", str(int(self._exclusive_threads > 0))
        )
        options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        limit_session(options, self._memory_limit_mb)
        if self._in_memory:
            content = list(self._in_memory.values())
            options.add_external_initializers_from_files_in_memory(
                list(self._in_memory), content, list(map(len, content))
            )
        for library in self._libraries:
            try:
                options.register_custom_ops_library(str(library))
            except Exception as error:
                reason = sentence(str(error))
                what = f"custom operators {quoted(library.name)} cannot be loaded"
                raise LoadFailed(f"{what}: {reason}") from error
        return options

    def _create(self, path: Path, options: Any, links: Sequence[Provider]) -> Any:
        providers = [(one.ort_name, limit_provider(one, self._memory_limit_mb)) for one in links]
        model: str | bytes = str(path)
        if path == self._path and (self._class_maps or self._parts or self._divisions.bits):
            model = self._rewritten(path)
            options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(path.parent))

        def create() -> Any:
            # ONNX Runtime's own fallback prints to stdout and loses the reason.
            return ort.InferenceSession(model, options, providers=providers, enable_fallback=0)

        with self._token.calling(partial(options.set_load_cancellation_flag, True)):
            raw = create() if options.intra_op_num_threads == 1 else with_low_priority(create)
        self._token.check()
        return raw

    def _rewritten(self, path: Path) -> bytes:
        """Return the model at `path`, rewritten for ONNX Runtime."""
        model = with_columns(path, self._class_maps) if self._class_maps else path.read_bytes()
        if self._parts:
            model = with_parts(model, self._parts)
        if not self._divisions.bits:
            return model
        return with_safe_divisions(memoryview(model), self._divisions)


_LEVELS = {
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def _session(
    raw: Any,
    model: ModelFile,
    placement: Placement,
    device: str,
    opener: Opener,
    exclusive_threads: int,
) -> Session:
    try:
        properties = model.metadata.properties
        inputs = declared_inputs([_spec(one, model.shapes) for one in raw.get_inputs()], properties)
        optional = [_spec(one, model.shapes) for one in raw.get_overridable_initializers()]
        declared = declared_classes(properties)
        part_of = {part: name for name, parts in opener.parts.items() for part, _ in parts}
        outputs = tuple(
            replace(with_classes(spec, declared), part_of=part_of.get(spec.name, ""))
            for one in raw.get_outputs()
            for spec in [_spec(one, model.shapes, opener.class_maps.get(one.name, ()))]
        )
    except UnicodeDecodeError as error:
        raise LoadFailed("the name of an input, output or dimension is not UTF-8") from error
    return Session(
        raw,
        inputs=inputs,
        outputs=outputs,
        optional_inputs=offered(optional),
        metadata=model.metadata,
        placement=placement,
        device=device,
        rows=opener.rows,
        tables=opener.tables,
        needs_entries=opener.needs_entries,
        memory_limit_mb=opener.memory_limit_mb,
        max_output_bytes=opener.max_output_bytes,
        elsewhere=opener.child(exclusive_threads),
    )


def _spec(argument: Any, shapes: Mapping[str, DeclaredShape], classes: Classes = ()) -> TensorSpec:
    kind: str = argument.type
    shape: DeclaredShape = tuple(argument.shape)
    if not kind.startswith("tensor("):
        shape = None
    elif not shape:  # a scalar or of unknown rank: only the file distinguishes them
        shape = shapes.get(argument.name)
    datatype = BY_ORT[kind].name if kind in BY_ORT else kind
    return TensorSpec(argument.name, datatype, shape, classes)
