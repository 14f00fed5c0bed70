"""Find which provider runs which nodes of a model, and how a server would run it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from cohort.errors import CohortError, LoadFailed
from cohort.generative.config import read_decoder_file
from cohort.generative.factory import is_plain_decoder
from cohort.operating import describe_rows
from cohort.profiling import (
    find_trial,
    influence,
    plan_rows,
    row_advice,
    row_places,
    why_unbatchable,
)
from cohort.repository import GENAI_FILE
from cohort.session import AssignedNode, ModelRules, Opener, Provider, Session, available_providers
from cohort.tensors import TensorSpec
from cohort_prepare.overview.parts import MAX_ASSIGNED, Behavior, ChainOutcome, Serving, clip

CHECKED_ROWS = 4

ELSEWHERE = frozenset({"azure"})
"""Providers that do not run on this machine."""


def observe(path: Path, rules: ModelRules) -> Behavior:
    """Open the model on each available provider, and run it as a server would at first."""
    here = [one for one in available_providers() if one.name not in ELSEWHERE]
    return Behavior([_on(path, provider, rules) for provider in here], _served(path, rules))


def _on(path: Path, provider: Provider, rules: ModelRules) -> ChainOutcome:
    chain = tuple(dict.fromkeys((provider.name, "cpu")))
    links = tuple(map(Provider, chain))
    try:
        session = Opener(path, chain=links, policy="require", rules=rules).open()
    except LoadFailed as error:
        return ChainOutcome(chain, _problem(error, provider.name))
    nodes = [
        AssignedNode(node.provider, clip(node.operator), clip(node.name))
        for node in islice(session.assigned_nodes(), MAX_ASSIGNED)
    ]
    outcome = ChainOutcome(chain, "", session.placement.nodes, nodes)
    session.close()
    return outcome


def _problem(error: LoadFailed, provider: str) -> str:
    return str(error).removeprefix(f"provider_policy require asks for {provider}: ")


def _served(path: Path, rules: ModelRules) -> Serving:
    opener = Opener(path, rules=rules)
    chain = [link.name for link in rules.default_chain.links]
    try:
        session = opener.open()
    except LoadFailed as error:
        return Serving(chain, problem=str(error))
    if is_plain_decoder(path) or _is_named_decoder(path):
        session.close()
        return Serving(chain, language_model=True)
    reason, checked = _why_not_batched(session)
    served = Serving(
        chain=chain,
        batched=not reason,
        reason=reason,
        checked=checked,
        rows=describe_rows(session.rows),
        row_places=list(row_places(session.rows)),
        advice=row_advice(session.rows),
        open_dimensions=[
            name
            for spec in session.inputs
            for name in _open_dimensions(spec, (session.rows.axes or {}).get(spec.name, 0))
        ],
        unpredictable=session.unpredictable,
        unsent={clip(one.name): one.datatype for one in session.outputs if not one.transportable},
    )
    session.close()
    return served


def _is_named_decoder(path: Path) -> bool:
    """Return True if the `genai_config.json` next to a file names it as the decoder."""
    try:
        return read_decoder_file(path.parent / GENAI_FILE) == path.name
    except LoadFailed:
        return False


def _why_not_batched(session: Session) -> tuple[str, bool]:
    """Return why requests are not batched, and True if the model was run to find out."""
    outputs = [one for one in session.outputs if one.transportable]
    if reason := why_unbatchable(session.inputs, outputs, session.rows):
        return reason, False
    trial = find_trial(session.run, session.inputs, session.rows.axes, session.tables)
    if trial.problem:
        return f"it cannot run with generated inputs: {trial.problem}", False
    try:
        return influence(
            session.run,
            trial.requests(CHECKED_ROWS),
            outputs,
            stacking=plan_rows(session.inputs, outputs, session.rows),
        ), True
    except CohortError as error:
        return str(error), False


def _open_dimensions(spec: TensorSpec, rows: int | None) -> list[str]:
    """Return the dimensions that requests choose, except `rows`."""
    if spec.shape is None:
        return [f"{clip(spec.name)}: any shape"]
    return [
        f"{clip(spec.name)}.{axis}" if size is None else f"{clip(spec.name)}.{axis} ({clip(size)})"
        for axis, size in enumerate(spec.shape)
        if axis != rows and not isinstance(size, int)
    ]
