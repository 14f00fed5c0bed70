"""The generated code of rpc: what protoc makes of the .proto, in a descriptor pool of ours."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools import ROOT

PROTO = "app/cohort/rpc/inference.proto"

# The generated code registers in the pool of app/cohort/rpc/descriptor_pool.py, which says why.
DEFAULT_POOL = "from google.protobuf import descriptor_pool as _descriptor_pool"
OUR_POOL = "from cohort.rpc import descriptor_pool as _descriptor_pool"

# protoc writes `Mapping` without saying of what.
LOOSE_TYPES = '# mypy: disable-error-code="type-arg"\n'


def messages() -> dict[Path, str]:
    """The module of the messages and its types, by their paths."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={folder}",
             f"--pyi_out={folder}", PROTO],
            check=True, cwd=ROOT,
        )  # fmt: skip
        module, types = (
            (Path(folder) / PROTO).with_name(f"inference_pb2.{suffix}").read_text(encoding="utf-8")
            for suffix in ("py", "pyi")
        )
    assert DEFAULT_POOL in module
    made = (ROOT / PROTO).with_name("inference_pb2.py")
    return {
        made: module.replace(DEFAULT_POOL, OUR_POOL),
        made.with_suffix(".pyi"): LOOSE_TYPES + types,
    }
