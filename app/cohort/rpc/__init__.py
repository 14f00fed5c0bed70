"""Open Inference over gRPC."""

from cohort.rpc.server import RpcServer

__all__ = ["RpcServer"]
