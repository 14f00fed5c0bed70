"""The generated code of rpc: the output of protoc, with Cohort's descriptor pool."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools import ROOT

PROTOS = [f"app/cohort/rpc/{name}.proto" for name in ("inference", "health", "reflection")]

# The generated code registers in the pool of app/cohort/rpc/descriptor_pool.py; see there.
DEFAULT_POOL = "from google.protobuf import descriptor_pool as _descriptor_pool"
OUR_POOL = "from cohort.rpc import descriptor_pool as _descriptor_pool"

# protoc writes `Mapping` without its types.
LOOSE_TYPES = '# mypy: disable-error-code="type-arg"\n'


def messages() -> dict[Path, str]:
    """Return the modules of the messages and their types, by path."""
    made: dict[Path, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={folder}",
             f"--pyi_out={folder}", *PROTOS],
            check=True, cwd=ROOT,
        )  # fmt: skip
        for proto in PROTOS:
            name = f"{proto.removesuffix('.proto')}_pb2"
            module, types = (
                Path(folder, f"{name}.{suffix}").read_text(encoding="utf-8")
                for suffix in ("py", "pyi")
            )
            assert DEFAULT_POOL in module
            made[ROOT / f"{name}.py"] = module.replace(DEFAULT_POOL, OUR_POOL)
            made[ROOT / f"{name}.pyi"] = LOOSE_TYPES + types
    return made
