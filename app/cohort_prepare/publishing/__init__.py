"""`cohort publish`: check a model and publish it atomically as the next version in a repository.

`publish_model` does it: `checks` validate the model, `evidence` runs it for the manifest, `card`
writes MODEL.md, and `placing` moves the folder to its place.
"""

from cohort_prepare.publishing.publisher import publish_model
from cohort_prepare.publishing.request import Publication, PublishRequest
from cohort_prepare.publishing.signing import load_signing_key

__all__ = ["Publication", "PublishRequest", "load_signing_key", "publish_model"]
