"""The current `/openapi.json`: the routes, and the tensors and examples of each loaded model.

In addition to the routes with `{model}`, every READY model has its own paths. Their schemas are
made from its tensors, and their examples were run when the model was loaded. The document is
rebuilt when the loaded models change.
"""

from cohort.http.openapi.document import install_openapi

__all__ = ["install_openapi"]
