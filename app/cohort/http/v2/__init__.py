"""The Open Inference Protocol, version 2, over REST, with Triton's extensions.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""
