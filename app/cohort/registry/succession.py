"""Which versions may answer callers that name none: those that take what these callers send."""

from __future__ import annotations

from cohort.repository import Signatures
from cohort.session import Signature


def hold_back(signatures: Signatures) -> dict[int, str]:
    """Say of each version whose signature callers of a lower one cannot use why that is so.

    Each is held against the highest lower version that is not held back itself, so that every
    process that sees the same files holds back the same versions. What cannot be told holds nobody
    back.
    """
    held: dict[int, str] = {}
    former: tuple[int, Signature] | None = None
    for number, signature in sorted(signatures.items()):
        if signature is None:
            continue
        if former is not None and (misfit := signature.misfit(former[1], f"version {former[0]}")):
            held[number] = (
                f"{misfit}, where requests that name no version still go; to send them here set "
                "allow_signature_change: true in config.yaml"
            )
        else:
            former = number, signature
    return held


def misfit_in_place(former: Signature | None, now: Signature) -> str:
    """Why callers of a version as it serves cannot use its new files; "" if they can."""
    if former is None or not (misfit := now.misfit(former, "the files that serve")):
        return ""
    return (
        f"{misfit}; publish it under a new number, or set allow_signature_change: true in "
        "config.yaml"
    )
