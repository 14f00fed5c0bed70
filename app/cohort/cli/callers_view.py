"""Inputs and outputs of a version as callers see them, for `cohort check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.registry import Source
    from cohort.session import Session, Signature

MAX_WAITING = 1 << 30
"""Memory for requests of a transform; `check` closes it before any request."""

NOT_LOADED = "set COHORT_MODEL_CODE=allow, for this command and for the server"


def as_callers_see(
    source: Source, session: Session, *, runs_code: bool
) -> tuple[Signature, list[str]]:
    """Return the inputs and outputs of a version after its config, and notes for the operator.

    runs_code: True if the transform may be loaded and called with zeros.

    Raises LoadFailed.
    """
    from cohort.errors import LoadFailed
    from cohort.processing import open_around
    from cohort.sequences import make_state_plan
    from cohort.session import Signature

    signature = Signature(session.inputs, session.outputs, session.optional_inputs)
    around = open_around(source, signature, session.metadata.properties)
    if around is not None:
        around.close()
        signature = Signature(around.inputs, around.outputs, around.optional)
    signature, notes = _transformed(source, signature, runs_code)
    config = source.config
    if config is None or not config.state:
        return signature, notes
    try:
        if config.cache is not None:
            raise LoadFailed(
                "cache: answers of a model with state depend on its sequence: remove cache or state"
            )
        plan = make_state_plan(config.state, config.sequences.initial, signature)
    except LoadFailed as error:
        raise LoadFailed(f"{source.name}/config.yaml: {error}") from error
    return Signature(plan.inputs, plan.outputs, ()), notes


def _transformed(
    source: Source, signature: Signature, runs_code: bool
) -> tuple[Signature, list[str]]:
    from cohort.session import Signature
    from cohort.transforms.factory import open_transform

    if source.config is None or source.config.transform is None:
        return signature, []
    if not runs_code:
        return signature, [f"transform not loaded: {NOT_LOADED}"]
    transform = open_transform(source, signature, MAX_WAITING)
    transform.close()
    return Signature(transform.inputs, transform.outputs, transform.optional), []
