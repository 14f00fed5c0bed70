"""Versions that may answer requests without a version: those that accept the same inputs."""

from __future__ import annotations

from cohort.repository import Signatures
from cohort.session import Signature


def hold_back(signatures: Signatures) -> dict[int, str]:
    """Return why versions cannot answer the callers of a lower version, by number.

    Each version is compared with the highest lower version that is not held back itself. So every
    process with the same files holds back the same versions. A version without a known signature is
    neither held back nor compared.
    """
    held: dict[int, str] = {}
    former: tuple[int, Signature] | None = None
    for number, signature in sorted(signatures.items()):
        if signature is None:
            continue
        if former is not None and (misfit := signature.misfit(former[1], f"version {former[0]}")):
            held[number] = (
                f"{misfit}; requests that name no version still go to version {former[0]}; to send "
                "them here, set allow_signature_change: true in config.yaml"
            )
        else:
            former = number, signature
    return held


def misfit_in_place(former: Signature | None, now: Signature) -> str:
    """Return why callers of a loaded version cannot use its new files; "" if they can."""
    if former is None or not (misfit := now.misfit(former, "the loaded files")):
        return ""
    return (
        f"{misfit}; publish it under a new number, or set allow_signature_change: true in "
        "config.yaml"
    )
