"""Versions that differ from those that a trusted key has signed."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from cohort.errors import LoadFailed
from cohort.onnx_engine import VersionOpener
from cohort.onnx_engine.preparation import PreparedVersion, prepare_version
from cohort.registry import Source
from cohort.repository import (
    ConfigProblems,
    Example,
    MeasuredOn,
    ModelConfig,
    Trust,
    fingerprint_of,
    load_trusted_keys,
    sign_manifest,
)
from cohort.session import Provider
from cohort.session.digests import hash_file
from tests.signed import LAST, OURS, THEIRS, publish, trust


def load(folder: Path, tmp_path: Path) -> PreparedVersion:
    """Load a version where our key alone is trusted."""
    trust(tmp_path / "keys.pem", OURS)
    source = Source(folder / "model.onnx", "", ModelConfig(providers=(Provider("cpu"),)))
    return prepare_version(
        source, VersionOpener(None, trust=Trust(load_trusted_keys(tmp_path / "keys.pem")))
    )


def test_version_that_is_signed_loads(tmp_path: Path) -> None:
    """It has the fingerprint of the signer."""
    prepared = load(publish(tmp_path, 1), tmp_path)
    prepared.close()
    assert prepared.published.signer == fingerprint_of(OURS.public_key())


def without_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def without_signature(folder: Path) -> None:
    (folder / "manifest.sig").unlink()


def signed_by_another(folder: Path) -> None:
    content = (folder / "manifest.json").read_bytes()
    (folder / "manifest.sig").write_bytes(sign_manifest(content, THEIRS))


def under_our_name(folder: Path) -> None:
    """Signed by another key, which calls itself ours."""
    signed_by_another(folder)
    written = json.loads((folder / "manifest.sig").read_text())
    written["key"] = fingerprint_of(OURS.public_key())
    (folder / "manifest.sig").write_text(json.dumps(written))


def without_prefix(folder: Path) -> None:
    """A signature over the same bytes that was not made for a manifest."""
    written = json.loads((folder / "manifest.sig").read_text())
    signature = OURS.sign((folder / "manifest.json").read_bytes())
    written["signature"] = b64encode(signature).decode()
    (folder / "manifest.sig").write_text(json.dumps(written))


def truncated(folder: Path) -> None:
    (folder / "manifest.sig").write_bytes((folder / "manifest.sig").read_bytes()[:40])


def another_manifest(folder: Path) -> None:
    """One that admits what was done to the weights."""
    flipped_weight(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["weights.bin"] = hash_file(folder / "weights.bin")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def flipped_weight(folder: Path) -> None:
    flip(folder / "weights.bin")


def flipped_model(folder: Path) -> None:
    flip(folder / "model.onnx")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def without_weights(folder: Path) -> None:
    (folder / "weights.bin").unlink()


def republish(**changes: Any) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        publish(folder.parents[1], int(folder.name), **changes)

    return harm


def with_unnamed_file(folder: Path) -> None:
    """Return a folder signed by us, although no publisher leaves the weights out."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["weights.bin"]
    content = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(content)
    (folder / "manifest.sig").write_bytes(sign_manifest(content, OURS))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (without_manifest, "it has no manifest.json, and COHORT_TRUSTED_KEYS lets only signed"),
        (without_signature, "it is not signed (manifest.sig is missing)"),
        (signed_by_another, "it is signed by a key that COHORT_TRUSTED_KEYS does not have"),
        (under_our_name, "its manifest.json is not the one that was signed"),
        (without_prefix, "its manifest.json is not the one that was signed"),
        (truncated, "manifest.sig is not a signature, or is truncated"),
        (another_manifest, "its manifest.json is not the one that was signed"),
        (flipped_weight, "'weights.bin' is not the file that was published"),
        (flipped_model, "'model.onnx' is not the file that was published"),
        (without_weights, "'weights.bin' was published, but cannot be read: is missing"),
        (republish(model="digits"), "it was signed as a version of 'digits', not of 'table'"),
        (republish(files={}), "its signed manifest.json has no digests of files"),
        (with_unnamed_file, "the model opens 'weights.bin', which manifest.json does not name"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_version_that_is_not_as_signed_is_not_loaded(
    tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    """The error names the fault."""
    folder = publish(tmp_path, 1)
    harm(folder)
    with pytest.raises(LoadFailed) as caught:
        load(folder, tmp_path)
    assert says in str(caught.value)


def test_example_says_by_how_much_it_is_off(tmp_path: Path) -> None:
    """A runtime that computes different values here serves no request."""
    other = Example({"index": np.array([[LAST]])}, {"y": np.array([[10_002.0]], np.float32)})
    with pytest.raises(LoadFailed) as caught:
        load(publish(tmp_path, 1, examples=(other,), measured_on=MeasuredOn("cpu")), tmp_path)
    assert str(caught.value) == (
        "example 1 of its manifest gives other outputs here, on cpu: output 'y' is off by 2 at "
        "[0, 0], in 1 of 1 values (tolerance 1e-05 + 0.0001 x the value)"
    )


def test_another_provider_may_round_otherwise_and_no_more(tmp_path: Path) -> None:
    """A GPU multiplies in fewer bits than the processor that a version was published on."""
    near = Example({"index": np.array([[LAST]])}, {"y": np.array([[10_050.0]], np.float32)})
    far = Example({"index": np.array([[LAST]])}, {"y": np.array([[10_500.0]], np.float32)})
    published = MeasuredOn("cuda")
    load(publish(tmp_path, 1, examples=(near,), measured_on=published), tmp_path).close()
    with pytest.raises(LoadFailed, match="off by 500"):
        load(publish(tmp_path, 1, examples=(far,), measured_on=published), tmp_path)
    with pytest.raises(LoadFailed, match="off by 50 "):
        load(publish(tmp_path, 1, examples=(near,)), tmp_path)


def test_keys_are_read_from_a_file_or_every_pem_of_a_folder(tmp_path: Path) -> None:
    """A key can be added or removed by copying files."""
    trust(tmp_path / "both.pem", OURS, THEIRS)
    both = {fingerprint_of(key.public_key()) for key in (OURS, THEIRS)}
    assert load_trusted_keys(tmp_path / "both.pem").keys() == both
    (tmp_path / "both.pem").unlink()
    trust(tmp_path / "ours.pem", OURS)
    trust(tmp_path / "theirs.pem", THEIRS)
    (tmp_path / "README.txt").write_text("whose keys these are")
    assert load_trusted_keys(tmp_path).keys() == both


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"", "has no key in PEM"),
        (b"\xff\xfe", "is not a PEM file"),
        (b"x" * 100_000, "is not a PEM file: it is larger"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not a public key"),
        (
            OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            "holds a private key",
        ),
        (
            ec.generate_private_key(ec.SECP256R1())
            .public_key()
            .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "is not an Ed25519 key",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_that_are_none_are_told(tmp_path: Path, content: bytes | None, says: str) -> None:
    """The error has the file's name; a partly valid file is refused."""
    file = tmp_path / "keys.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigProblems, match=r"keys\.pem: COHORT_TRUSTED_KEYS: ") as caught:
        load_trusted_keys(file)
    assert says in str(caught.value)
