"""Check that a library of custom operators was built for this machine, before it is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

ELF = b"\x7fELF"

MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}
"""Names by `e_machine`: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html."""


def why_foreign(library: Path) -> str:
    """Return the reason why the system cannot load a library; "" if it may. Raises OSError.

    The system's own error message for another machine's library is that it does not exist.
    """
    own, head = _head(Path(sys.executable)), _head(library)
    if not own.startswith(ELF):
        return ""
    if not head.startswith(ELF) or len(head) < _HEAD_BYTES:
        return "are not a library: the file is damaged, or something else"
    if (here := _machine(own)) != (there := _machine(head)):
        return f"are built for {there}, and this Python is {here}: build them for that"
    return ""


_HEAD_BYTES = 20


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(_HEAD_BYTES)


def _machine(head: bytes) -> str:
    """Return the processor and its address size in bits."""
    order = "little" if head[5] == 1 else "big"
    number = int.from_bytes(head[18:20], order)  # type: ignore[arg-type]
    return f"{MACHINES.get(number, f'machine {number}')} ({32 * head[4]} bits)"
