"""The certificates that the server shows and takes: read from the operator's files, and again when
they have changed.

`load_tls` reads them, `TlsWatcher` keeps what was last good.
"""

from cohort.connections.tls.files import Tls, TlsFiles, load_tls
from cohort.connections.tls.watcher import TlsWatcher

__all__ = ["Tls", "TlsFiles", "TlsWatcher", "load_tls"]
