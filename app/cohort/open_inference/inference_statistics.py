"""Usage of versions, in the format of Triton's statistics extension.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

from cohort.metrics import VersionMetrics
from cohort.operating import Description, ModelReader


def model_statistics(
    plane: ModelReader, model: str | None = None, version: str | None = None
) -> list[Description]:
    """Return the statistics of READY versions: of all models, one model, or one version.

    Raises ModelNotFound, VersionNotFound or NotReady.
    """
    return [_statistics(*one) for one in plane.usage(model, version)]


def _statistics(model: str, version: str, counts: VersionMetrics) -> Description:
    """Return the statistics of one version.

    Times of input and output are 0, because the runtime uses numpy's memory directly. Any thread
    may call this: it copies counts that other threads may be changing.
    """
    outcomes = counts.outcomes.copy()
    succeeded = sum(count for (_, code), count in outcomes.items() if code == "OK")
    failed = sum(outcomes.values()) - succeeded
    seconds = sum(durations.total for durations in list(counts.durations.values()))
    none = _duration(0, 0.0)
    return {
        "name": model,
        "version": version,
        "last_inference": round(counts.last_run * 1000),
        "inference_count": round(counts.rows.total),
        "execution_count": counts.run.count,
        "inference_stats": {
            "success": _duration(succeeded, seconds - counts.failed_seconds),
            "fail": _duration(failed, counts.failed_seconds),
            "queue": _duration(counts.queue.count, counts.queue.total),
            "compute_input": none,
            "compute_infer": _duration(counts.run.count, counts.run.total),
            "compute_output": none,
            "cache_hit": none,
            "cache_miss": none,
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": none,
                "compute_infer": _duration(count, seconds),
                "compute_output": none,
            }
            for rows, (count, seconds) in sorted(counts.runs_by_rows.copy().items())
        ],
    }


def _duration(count: int, seconds: float) -> Description:
    return {"count": count, "ns": max(0, round(seconds * 1e9))}
