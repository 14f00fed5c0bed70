"""A request to publish a model, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.inspection import InspectionLimits
from cohort.repository import Manifest
from cohort_prepare.source import SourceModel

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Options of publishing.

    model: ONNX file, next to its external data; or a pipeline.yaml or genai_config.json, next to
        its files.
    name: Model name.
    to: Models folder, or the address of a remote repository.
    examples: A .npz with inputs and, optionally, expected outputs; for a language model, a .jsonl
        of prompts and, optionally, answers. Default None: generated; for a language model, none.
    labels: Correct answer for each row, a .npy; default None: no accuracy.
    source: Source model, or an ONNX file; default None: not compared.
    optimize: True to run `cohort optimize` first; default False.
    quantize: Recipe of `cohort quantize`, applied next; default None.
    calibration: Rows for quantization; default None: the examples.
    key: Key that signs the version; default None: unsigned.
    limits: Limits for opening the model and its first run; default: a server's.
    """

    model: Path
    name: str
    to: str
    examples: Path | None = None
    labels: Path | None = None
    source: SourceModel | Path | None = None
    optimize: bool = False
    quantize: str | None = None
    calibration: Path | None = None
    key: Ed25519PrivateKey | None = None
    limits: InspectionLimits = field(default_factory=InspectionLimits)

    @property
    def gives_evidence(self) -> bool:
        """True if there are examples, labels or a source, which are checked even if published."""
        return not (self.examples is None and self.labels is None and self.source is None)


@dataclass(frozen=True, slots=True, eq=False)
class Publication:
    """Result of publishing.

    version: Version number.
    place: Its folder or address.
    manifest: Its manifest.
    already: True if it existed before, so that nothing was written.
    signer: Fingerprint of the key that signed it; "" for none.
    notes: Notes for users of the model.
    """

    version: int
    place: str
    manifest: Manifest
    already: bool = False
    signer: str = ""
    notes: tuple[str, ...] = ()
