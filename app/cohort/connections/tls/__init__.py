"""The server's certificates, and those that clients' are verified with.

They are read from the operator's files, and again after changes. `load_tls` reads them;
`TlsWatcher` keeps the last valid ones.
"""

from cohort.connections.tls.files import Tls, TlsFiles, load_tls
from cohort.connections.tls.watcher import TlsWatcher

__all__ = ["Tls", "TlsFiles", "TlsWatcher", "load_tls"]
