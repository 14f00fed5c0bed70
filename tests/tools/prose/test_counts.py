"""`python -m tools.prose --counts` prints a table of how plain each part of the project is."""

from __future__ import annotations

import pytest

from tools.prose.counts import count, name_part, write_table
from tools.prose.rules import check


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("README.md", "README.md"),
        ("docs/index.md", "docs/*.md"),
        ("docs/guide/text.md", "docs/guide/*.md"),
        ("app/cohort/errors.py", "app/cohort"),
        ("app/cohort/http/tls/files.py", "app/cohort/http"),
        ("tests/http/tls/test_files.py", "tests/http"),
        ("/elsewhere/README.md", "/elsewhere/README.md"),
    ],
)
def test_documents_count_by_folder_and_code_by_package(path: str, part: str) -> None:
    """Files at the root, or outside the checkout, count each for itself."""
    assert name_part(path) == part


def test_words_sentences_and_findings_are_counted() -> None:
    """Averages are over sentences of paragraphs and docstrings; headings count as words only."""
    sources = {
        "docs/a.md": "# A title, with words\n\nOne, two, `three four`.\nIt holds up nobody.\n",
        "docs/b.md": "Plain text here.\n",
        "app/cohort/one.py": '"""Of the output."""\n',
    }
    findings = [one for path, source in sources.items() for one in check(path, source)]
    *_, docs, code_total, docs_total = write_table(count(sources, findings)).splitlines()
    assert docs == "| docs/*.md | 14 | 4 | 0 | 1 | 0 | 0 | 0 | 3.3 | 0.67 |"
    assert docs_total == docs.replace("docs/*.md", "all documents")
    assert code_total == "| all code | 3 | 1 | 1 | 0 | 0 | 0 | 0 | 3.0 | 0.00 |"


def test_a_part_without_sentences_has_averages_of_0() -> None:
    """A page may have headings only."""
    table = write_table(count({"a.md": "# Title\n"}, []))
    assert "| a.md | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0.0 | 0.00 |" in table
