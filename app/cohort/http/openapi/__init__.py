"""`/openapi.json` as it is now: the routes, and each loaded model's own tensors and examples.

Beside the routes with `{model}` in them, every READY model has paths of its own, with schemas made
from its tensors and an example that was run when it was loaded. The document is made again when
what is loaded has changed.
"""

from cohort.http.openapi.document import install_openapi

__all__ = ["install_openapi"]
