"""The system shared memory extension: register, unregister and status.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from cohort.codec import parse_json
from cohort.codec.json_tensors import shown
from cohort.errors import InvalidInput
from cohort.http.credentials import caller_of, name_of_caller
from cohort.http.json_response import json_response
from cohort.http.methods import Routes
from cohort.http.v2.message import json_object
from cohort.open_inference import NO_CUDA, Regions
from cohort.open_inference.parameters import whole_number


def shared_memory_router(regions: Regions) -> Routes:
    """Return the routes. Triton's clients also unregister CUDA regions, which do not exist here."""
    routes = Routes(prefix="/v2")

    @routes.get("/systemsharedmemory/status", summary="The shared memory regions")
    async def all_regions(request: Request) -> Response:
        """The regions that the caller has registered."""
        return json_response(regions.status(name_of_caller(request.scope)))

    @routes.get("/systemsharedmemory/region/{region}/status", summary="A shared memory region")
    async def one_region(request: Request, region: str) -> Response:
        return json_response(regions.status(name_of_caller(request.scope), region))

    @routes.post(
        "/systemsharedmemory/unregister",
        summary="Unregister all shared memory",
        response_class=Response,
    )
    async def unregister_all(request: Request) -> Response:
        """Unregisters all regions of the caller."""
        regions.unregister(name_of_caller(request.scope))
        return Response(status_code=200)

    @routes.post(
        "/systemsharedmemory/region/{region}/unregister",
        summary="Unregister a shared memory",
        response_class=Response,
    )
    async def unregister(request: Request, region: str) -> Response:
        regions.unregister(name_of_caller(request.scope), region)
        return Response(status_code=200)

    @routes.post(
        "/systemsharedmemory/region/{region}/register",
        summary="Register a shared memory",
        response_class=Response,
    )
    async def register(request: Request, region: str) -> Response:
        """`{"key": "/cohort_in", "offset": 0, "byte_size": 64}`; needs COHORT_SHARED_MEMORY."""
        body = await request.body()
        document = json_object("the body", parse_json(body))
        key = document.get("key")
        if not isinstance(key, str):
            raise InvalidInput(f"key must be a string, got {shown(key)}")
        caller = caller_of(request.scope)
        regions.register(
            "" if caller is None else caller.name,
            region,
            key,
            offset=whole_number("offset", document.get("offset")),
            size=whole_number("byte_size", document.get("byte_size")),
            admin=caller is not None and caller.admin,
        )
        return Response(status_code=200)

    @routes.get("/cudasharedmemory/status", include_in_schema=False)
    @routes.get("/cudasharedmemory/region/{region}/status", include_in_schema=False)
    async def no_regions() -> list[Any]:
        return []

    @routes.post("/cudasharedmemory/unregister", include_in_schema=False)
    @routes.post("/cudasharedmemory/region/{region}/unregister", include_in_schema=False)
    async def unregister_none() -> Response:
        return Response(status_code=200)

    @routes.post("/cudasharedmemory/region/{region}/register", include_in_schema=False)
    async def register_none() -> Response:
        raise InvalidInput(NO_CUDA)

    return routes
