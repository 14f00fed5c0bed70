"""Opens one version of a language model, and tries it. Runs on a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.errors import LoadFailed
from cohort.generative.config import (
    DecoderConfig,
    describe_export,
    read_genai_config,
)
from cohort.generative.decoder import Decoder, SharedDecoder, token_bytes
from cohort.generative.engine import SIGNATURE, GenerativeEngine
from cohort.generative.events import MakeObserver
from cohort.generative.examples import (
    GreedyAnswers,
    check_examples,
    examples_of_config,
    examples_of_manifest,
)
from cohort.generative.generation_queue import GenerationQueue, Parts
from cohort.generative.plain_decoder import PlainDecoder
from cohort.generative.preparing import Limits
from cohort.generative.trial import parts_are_exact, try_decoder, try_last_place
from cohort.generative.vocabulary import Vocabulary, open_vocabulary
from cohort.onnx_engine import OpenVersion, VersionOpener
from cohort.registry import EngineDescription, Site, Source, TextDescription
from cohort.repository import (
    GENAI_FILE,
    MANIFEST_FILE,
    GenerationPolicy,
    ModelConfig,
    Published,
)
from cohort.scheduling import RunQueue
from cohort.session import (
    AssignedNode,
    CancellationToken,
    Session,
    Signature,
    available_memory,
    cores,
    read_signature,
)
from cohort.tensors import BY_NAME

MIN_SHARE = 4
"""By default, a cache takes free memory divided by this number."""

ANSWER_SECONDS = 600.0
"""Maximum time of a request by default, as of OpenAI's clients: long answers take minutes."""

DESCRIBING = (
    *("genai_config.json", "config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
)
"""Files next to a decoder that are read."""

SMALL_PARTS = Parts(8, 32)
"""The parts of prompts; if bits depend on them, all parts have `prefill_tokens`."""


def open_language_model(
    source: Source,
    opener: VersionOpener,
    token: CancellationToken,
    wake: Callable[[RunQueue], None],
    count: MakeObserver,
) -> OpenedLanguageModel:
    """Open a version with a genai_config.json, or a plain export with a tokenizer.json.

    Raises as `VersionOpener.open` does.
    """
    if source.problem or source.config is None:
        raise LoadFailed(source.problem or "its config cannot be read")
    _check_config(source.config, source.name)
    found = _describe(source.path)
    folder = source.path.parent
    vocabulary = open_vocabulary(folder, found.end_tokens)
    config = source.config
    options = config.session
    if options.intra_op_threads is None:
        options = replace(options, intra_op_threads=cores())
    examples = examples_of_config(config.example)
    plain = replace(config, session=options)
    opened = opener.open(
        replace(source, path=folder / found.file, config=plain, preparation=None),
        token,
        runs_examples=False,
        exclusive_threads=options.intra_op_threads or 0,  # a step has hundreds of short nodes
    )
    try:
        _check_signed(folder, opened.published)
        check_names(found, opened.session.signature)
        policy = config.generation
        decoder, budget = make_decoder(opened.session, found, policy)
        check_tokens(vocabulary, decoder.vocabulary)
        try_decoder(decoder)
        if isinstance(decoder, SharedDecoder):
            try_last_place(decoder)
        parts = SMALL_PARTS
        most = policy.prefill_tokens
        if most < parts.block or not parts_are_exact(decoder, parts.unit, most):
            parts = Parts(most, most)
        examples += examples_of_manifest(opened.published.manifest)
        shown = next((one.prompt for _, one in examples if isinstance(one.prompt, str)), "Hello")
        limits = Limits(
            context=found.context_length,
            budget=budget,
            unit=parts.unit,
            block=parts.block,
            vocabulary=decoder.vocabulary,
        )
        model = OpenedLanguageModel(
            opened, found, vocabulary, decoder, limits, parts, config, shown, wake, count
        )
        token.enter("in its examples")
        check_examples(model.answers(token), examples, opened.session.placement.active)
    except BaseException:
        opened.close()
        raise
    if opened.opener.in_memory:
        opened.opener.close()  # the session holds the model
    return model


def _check_config(config: ModelConfig, model: str) -> None:
    """Raise LoadFailed for keys of the config that have no meaning for language models."""
    for key in ("inputs", "outputs", "transform", "state", "cache"):
        if getattr(config, key):
            raise LoadFailed(f"{model}/config.yaml: {key}: does not apply to language models")


def _check_signed(folder: Path, published: Published) -> None:
    """Raise LoadFailed if a file of a signed version is not in its manifest."""
    if published.signer and published.manifest is not None:
        for name in DESCRIBING:
            if name not in published.manifest.files and (folder / name).exists():
                raise LoadFailed(f"it has {name}, which its signed {MANIFEST_FILE} does not name")


def _describe(path: Path) -> DecoderConfig:
    if path.name == GENAI_FILE:
        return read_genai_config(path)
    signature = read_signature(path)
    if signature is None:
        raise LoadFailed(f"its {path.name} is not a model")
    return describe_export(path.parent, path.name, signature.inputs)


def _shares(node: AssignedNode) -> bool:
    """Return True if the node writes new keys and values into the memory of the old ones."""
    return node.operator == "com.microsoft.GroupQueryAttention"


def make_decoder(
    session: Session, config: DecoderConfig, policy: GenerationPolicy
) -> tuple[Decoder, int]:
    """Return the decoder with its cache, and the budget in tokens. Raises LoadFailed."""
    kinds = {spec.name: spec.datatype for spec in session.inputs}
    size = token_bytes(config, kinds[config.layout.past[0]])
    if policy.cache_mb is None:
        given = available_memory() // MIN_SHARE
    else:
        given = int(policy.cache_mb * 2**20)
    most = policy.max_sequences * config.context_length
    budget = min(given // size, most)
    if budget < 2:
        raise LoadFailed(
            f"its cache needs {size / 2**20:.3g} MB for each token, and may take "
            f"{given / 2**20:.3g} MB: raise generation.cache_mb"
        )
    length = min(config.context_length, budget)
    if not (config.shares and any(map(_shares, session.assigned_nodes()))):
        return PlainDecoder(session, config, policy.max_sequences, length), budget
    return SharedDecoder(session, config, policy.max_sequences, length), budget


def check_tokens(vocabulary: Vocabulary, known: int) -> None:
    """Raise LoadFailed for the tokenizer of another model, which has more tokens than logits.

    Tokens that were added to the tokenizer may be beyond the logits: prompts with them are refused.
    """
    if vocabulary.plain_size > known:
        raise LoadFailed(
            f"its tokenizer.json has {vocabulary.plain_size} tokens, but the decoder has logits "
            f"for {known}: they are not of the same model"
        )


def check_names(config: DecoderConfig, signature: Signature) -> None:
    """Raise LoadFailed if the decoder's inputs and outputs are not those of its description."""
    layout = config.layout
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name for spec in signature.outputs}
    needed = (layout.input_ids, layout.attention_mask, *layout.past)
    for name in needed:
        if name not in inputs:
            raise LoadFailed(f"its decoder has no input {name!r}, which genai_config.json names")
    for name in (layout.logits, *layout.present):
        if name not in outputs:
            raise LoadFailed(f"its decoder has no output {name!r}, which genai_config.json names")
    for name in inputs:
        if name not in needed and name != layout.position_ids:
            raise LoadFailed(f"its decoder has an input {name!r} that is not supported")
    kinds = {inputs[name].datatype for name in layout.past}
    if len(kinds) > 1 or BY_NAME[next(iter(kinds))].bits < 8:
        raise LoadFailed("its keys and values must have one datatype of at least 8 bits")


@dataclass(frozen=True, slots=True)
class OpenedLanguageModel:
    """A language model that is open. Implements `OpenedVersion`."""

    _opened: OpenVersion
    _found: DecoderConfig
    _vocabulary: Vocabulary
    _decoder: Decoder
    _limits: Limits
    _parts: Parts
    _config: ModelConfig
    _example: str
    _wake: Callable[[RunQueue], None]
    _count: MakeObserver

    @property
    def signature(self) -> Signature:
        """The inputs and outputs of requests of tensors."""
        return SIGNATURE

    @property
    def properties(self) -> Mapping[str, str]:
        """The metadata in the decoder's file."""
        return self._opened.session.metadata.properties

    @property
    def published(self) -> Published:
        """The version's manifest, and who signed it."""
        return self._opened.published

    def answers(self, token: CancellationToken) -> GreedyAnswers:
        """Return the generator of greedy answers, for use before `start`."""
        return GreedyAnswers(
            self._decoder,
            self._vocabulary,
            self._limits,
            self._found.sampling,
            self._parts.block,
            token.check,
        )

    def start(self, site: Site) -> GenerativeEngine:
        """See `OpenedVersion`."""
        policy, session = self._config.generation, self._opened.session
        queue: GenerationQueue
        observe = self._count(site.model, str(site.number), lambda: queue.state)
        queue = GenerationQueue(
            self._decoder,
            self._vocabulary,
            policy,
            self._limits.budget,
            self._parts,
            wake=self._wake,
            observe=observe,
            name=f"model {site.model}, version {site.number}",
            device=session.device,
            on_closed=self.close,
        )
        return GenerativeEngine(
            session,
            self._found,
            self._vocabulary,
            self._limits,
            queue,
            description=self.describe,
            timeout=self._config.timeout(ANSWER_SECONDS),
            example=self._example,
        )

    @property
    def text(self) -> TextDescription:
        """The language model."""
        return TextDescription(
            self._limits.tokens,
            self._vocabulary.template is not None,
            self._limits.budget * self._decoder.token_bytes,
        )

    def describe(self) -> EngineDescription:
        """Describe its engine."""
        session = self._opened.session
        cache = self._limits.budget * self._decoder.token_bytes
        way = "one after the other" if isinstance(self._decoder, PlainDecoder) else "in one run"
        sentence = (
            f"at most {self._decoder.slots} answers at a time, each step {way}; the cache holds "
            f"{self._limits.budget} tokens in at most {cache / 2**20:.0f} MB"
        )
        return EngineDescription(
            session.metadata,
            session.placement,
            session.device,
            self._opened.files,
            self._opened.published,
            processing={"text_input": sentence},
            text=self.text,
        )

    def close(self) -> None:
        """See `OpenedVersion`."""
        self._decoder.close()
        self._opened.close()
