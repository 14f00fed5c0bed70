"""Write the reference page, the schemas of operators' files and the messages: `make reference`."""

from __future__ import annotations

from tools.reference.written import written

if __name__ == "__main__":
    for path, text in written().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
