"""`cohort publish`: a checked model becomes the next version of a repository, whole or not at all.

`publish_model` does it: `checks` look at the model, `evidence` runs it and makes what its manifest
promises, `card` writes MODEL.md, and `placing` puts the folder in place.
"""

from cohort_prepare.publishing.publisher import Publication, PublishRequest, publish_model
from cohort_prepare.publishing.signing import load_signing_key

__all__ = ["Publication", "PublishRequest", "load_signing_key", "publish_model"]
