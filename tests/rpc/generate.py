"""Write the generated code of app/rpc again: `python -m tests.rpc.generate`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTO = "app/rpc/inference.proto"

# The generated code registers in the pool of app/rpc/descriptor_pool.py, which says why.
DEFAULT_POOL = "from google.protobuf import descriptor_pool as _descriptor_pool"
OUR_POOL = "from app.rpc import descriptor_pool as _descriptor_pool"

# protoc writes `Mapping` without saying of what.
LOOSE_TYPES = '# mypy: disable-error-code="type-arg"\n'


def generate() -> dict[str, str]:
    """What protoc makes of the .proto, by path in the repository."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={folder}",
             f"--pyi_out={folder}", PROTO],
            check=True, cwd=ROOT,
        )  # fmt: skip
        written = {
            str(path.relative_to(folder)): path.read_text(encoding="utf-8")
            for path in sorted(Path(folder).rglob("*.py*"))
        }
    module, types = "app/rpc/inference_pb2.py", "app/rpc/inference_pb2.pyi"
    assert set(written) == {module, types}
    assert DEFAULT_POOL in written[module]
    return {
        module: written[module].replace(DEFAULT_POOL, OUR_POOL),
        types: LOOSE_TYPES + written[types],
    }


if __name__ == "__main__":
    for path, text in generate().items():
        (ROOT / path).write_text(text, encoding="utf-8")
