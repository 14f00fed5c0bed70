"""Open Inference over gRPC."""

from app.rpc.server import RpcServer

__all__ = ["RpcServer"]
