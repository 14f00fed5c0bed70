"""Model repositories at S3, Google Cloud Storage, Azure Blob Storage or a web server.

`Mirror` keeps a local folder in sync with a repository; the server then serves that folder.
`upload_version` uploads a version that counts only once it is complete. Both use obstore, the extra
`remote`, which is imported only when a bucket's address is opened.
"""

from cohort.remote.listing import ModelUse
from cohort.remote.mirror import Mirror, MirrorStatus
from cohort.remote.store import RemoteFile, RemoteStore
from cohort.remote.uploading import fetch_manifests, has_files, upload_version

__all__ = [
    "Mirror",
    "MirrorStatus",
    "ModelUse",
    "RemoteFile",
    "RemoteStore",
    "fetch_manifests",
    "has_files",
    "upload_version",
]
