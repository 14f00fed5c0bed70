"""All routes under /v2."""

from __future__ import annotations

from fastapi import APIRouter

from cohort.auth.authority import Authority
from cohort.http.v2.generate_routes import generate_router
from cohort.http.v2.infer_routes import infer_router
from cohort.http.v2.models import metadata_router
from cohort.http.v2.repository import repository_router
from cohort.http.v2.shared_memory import shared_memory_router
from cohort.open_inference import Regions
from cohort.operating import ControlPlane
from cohort.serving import DataPlane


def v2_router(
    data_plane: DataPlane,
    control_plane: ControlPlane,
    *,
    authority: Authority,
    regions: Regions,
) -> APIRouter:
    """Return the routes under /v2."""
    routes = APIRouter(tags=["v2"])
    routes.include_router(infer_router(data_plane, regions))
    routes.include_router(generate_router(data_plane))
    routes.include_router(metadata_router(control_plane))
    routes.include_router(repository_router(control_plane, authority=authority))
    routes.include_router(shared_memory_router(regions))
    return routes
