"""Notes of `cohort check` on batching of a version."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.profiling import known_rounding, row_advice, why_unbatchable
from cohort.repository import Manifest, ModelConfig
from cohort.session import Session


def row_notes(session: Session, config: ModelConfig, manifest: Manifest | None) -> Iterator[str]:
    """Yield reasons why requests are not batched, and contradictions with the manifest."""
    rows, policy = session.rows, config.batching
    reason = why_unbatchable(session.inputs, session.outputs, rows, policy)
    if not policy.batches:
        return
    if not reason:
        yield from (f"some requests run one by one, such as {one}" for one in rows.other_requests)
        if not rows.independent:
            yield f"requests in a batch may change each other's answers (batching.trust): {rows}"
        elif policy.exact and (kernel := _rounding_by_place(session, config)):
            yield f"requests run one by one (batching.exact): {kernel}"
        return
    advice = row_advice(session.rows)
    yield f"requests run one by one: {reason}{f'; to batch: {advice}' if advice else ''}"
    published = None if manifest is None else manifest.rows
    if published is not None and published.independent and not session.rows.independent:
        yield f"its manifest is ignored: it states that rows are {published.verdict}"


def _rounding_by_place(session: Session, config: ModelConfig) -> str:
    """Return the node that rounds a row differently by its place in a run; "" if none is known."""
    found = known_rounding(session, config.session)
    return next((str(one) for one in found if one.by == "place"), "")
