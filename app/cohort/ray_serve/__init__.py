"""Cohort on Ray Serve: `build` makes the application that deploy/ray/serve.yaml names.

Ray's proxies pass requests to `ingress`, which finds the model and passes them to `replica`, which
has the engine and all routes. Needs the extra `ray`, which only these modules import.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["add_inference_service", "build"]

_HOMES = {
    "add_inference_service": "cohort.ray_serve.grpc_methods",
    "build": "cohort.ray_serve.builder",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, since its module needs Ray or grpcio."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
