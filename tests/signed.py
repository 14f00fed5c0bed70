"""Versions that are signed, as `cohort publish --sign` writes them, and who is trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cohort.repository import Example, Manifest, dump_manifest, sign_manifest
from cohort.session.digests import hash_file
from tests import onnx_models

OURS, THEIRS = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
LAST = 1000


def publish(
    models: Path, number: int, *, key: Ed25519PrivateKey | None = OURS, **changes: Any
) -> Path:
    """A version that multiplies by its number, with external data; as `cohort publish` has it."""
    folder = models / "table" / str(number)
    path = folder / "model.onnx"
    onnx_models.save_with_external_data(onnx_models.table(size=LAST + 1), path)
    weights = folder / "weights.bin"
    weights.write_bytes((np.frombuffer(weights.read_bytes(), "f4") * number).tobytes())
    files = {name: hash_file(folder / name) for name in ("model.onnx", "weights.bin")}
    example = Example(
        {"index": np.array([[LAST]])}, {"y": np.array([[10.0 * LAST * number]], np.float32)}
    )
    content = dump_manifest(
        Manifest(
            **{"format": 1, "model": "table", "files": files, "examples": (example,), **changes}
        )
    )
    (folder / "manifest.json").write_bytes(content)
    if key is not None:
        (folder / "manifest.sig").write_bytes(sign_manifest(content, key))
    return folder


def trust(file: Path, *keys: Ed25519PrivateKey) -> None:
    pem = [
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for key in keys
    ]
    file.write_bytes(b"".join(pem))
