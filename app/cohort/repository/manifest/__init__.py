"""`manifest.json`, the record that `cohort publish` writes of a version, and `manifest.sig`.

`read_published` reads a version's manifest before its model is opened. It verifies the signature,
if the operator trusts only some keys, and the digests of all files.
"""

from cohort.repository.manifest.content import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    MAX_MANIFEST_VALUES,
    Change,
    Example,
    Manifest,
    MeasuredOn,
    PublishedAccuracy,
    PublishedRows,
    SourceDifference,
    SourceFramework,
    dump_manifest,
    parse_manifest,
    read_manifest,
)
from cohort.repository.manifest.features import Distribution, InputDistribution, describe_features
from cohort.repository.manifest.signature import SIGNATURE_FILE, fingerprint_of, sign_manifest
from cohort.repository.manifest.steps import StepDifference, StepRecord
from cohort.repository.manifest.texts import (
    MAX_ANSWER_TOKENS,
    MAX_TEXTS,
    TextExample,
    parse_text_example,
)
from cohort.repository.manifest.trust import Trust, TrustedKeys, Untrusted, load_trusted_keys
from cohort.repository.manifest.verification import (
    Published,
    read_published,
    verify_digests,
    verify_opened,
)

__all__ = [
    "MANIFEST_FILE",
    "MAX_ANSWER_TOKENS",
    "MAX_MANIFEST_BYTES",
    "MAX_MANIFEST_VALUES",
    "MAX_TEXTS",
    "SIGNATURE_FILE",
    "Change",
    "Distribution",
    "Example",
    "InputDistribution",
    "Manifest",
    "MeasuredOn",
    "Published",
    "PublishedAccuracy",
    "PublishedRows",
    "SourceDifference",
    "SourceFramework",
    "StepDifference",
    "StepRecord",
    "TextExample",
    "Trust",
    "TrustedKeys",
    "Untrusted",
    "describe_features",
    "dump_manifest",
    "fingerprint_of",
    "load_trusted_keys",
    "parse_manifest",
    "parse_text_example",
    "read_manifest",
    "read_published",
    "sign_manifest",
    "verify_digests",
    "verify_opened",
]
