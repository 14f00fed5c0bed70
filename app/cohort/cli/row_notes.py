"""What `cohort check` says of the rows of a version."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.profiling import known_rounding, row_advice, why_unbatchable
from cohort.repository import Manifest, ModelConfig
from cohort.session import Session


def row_notes(session: Session, config: ModelConfig, manifest: Manifest | None) -> Iterator[str]:
    """Why requests run one by one where batching is wanted, and whether that is news."""
    rows, policy = session.rows, config.batching
    reason = why_unbatchable(session.inputs, session.outputs, rows, policy)
    if not policy.batches:
        return
    if not reason:
        yield from (f"requests run one by one that are like {one}" for one in rows.other_requests)
        if not rows.independent:
            yield f"callers may change each other's answers (batching.trust): {rows}"
        elif policy.exact and (kernel := _rounding_by_place(session, config)):
            yield f"requests run one by one (batching.exact): {kernel}"
        return
    advice = row_advice(session.rows)
    yield f"requests run one by one: {reason}{f'; to batch: {advice}' if advice else ''}"
    published = None if manifest is None else manifest.rows
    if published is not None and published.independent and not session.rows.independent:
        yield f"its manifest says otherwise, rows are {published.verdict}: it does not count here"


def _rounding_by_place(session: Session, config: ModelConfig) -> str:
    """The node that rounds a row by its place in a run; "" where none is known to."""
    found = known_rounding(session, config.session)
    return next((str(one) for one in found if one.by == "place"), "")
