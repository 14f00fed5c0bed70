"""Model repositories at S3, Google Cloud Storage, Azure Blob Storage or a web server.

`Mirror` keeps a local folder in step with one of them, which is then served as any other;
`upload_version` puts a version into one, so that it counts only when it is whole. Both go through
obstore, the extra `remote`, which is imported when an address is opened and not before.
"""

from cohort.remote.listing import ModelUse
from cohort.remote.mirror import Mirror, MirrorStatus
from cohort.remote.uploading import fetch_manifests, has_files, upload_version

__all__ = [
    "Mirror",
    "MirrorStatus",
    "ModelUse",
    "fetch_manifests",
    "has_files",
    "upload_version",
]
