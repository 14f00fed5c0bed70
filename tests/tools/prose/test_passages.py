"""The English of each kind of file is found, at its line, and code is not taken for it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tools.prose.passages import find_passages
from tools.prose.sentences import split_sentences


def read(path: str, source: str) -> list[tuple[str, int, str]]:
    """Return the kind, line and text of each sentence."""
    return [
        (one.kind.value, one.line, " ".join(one.written.split()))
        for passage in find_passages(path, dedent(source))
        for one in split_sentences(passage)
    ]


PYTHON = '''\
"""The first line.

More of it. And
another: `one two`.

rows: The number.
    Of rows.
other, more (text): Something else.

    >>> print("Not this one")
"""

LIMIT = 3
"""Requests that may wait."""
# A comment of
# two lines.
# noqa: E501
VALUE = 1  # A reason.
NAME = "no comment # here"


class Full(Exception):
    def __str__(self):
        """Return the sentence."""
        if self.name:
            raise ValueError("not found")
        return f"the queue of {self.name} is full, with {self.count:d} requests"

    @option("--rows", help="Rows.", default="some")
    def use(self):
        return "a" "b"
'''


def test_docstrings_comments_and_messages_of_python() -> None:
    """Each definition, paragraph and block of comments is a text; data and code are not."""
    in_tests = [
        ("docstring", 1, "The first line."),
        ("docstring", 3, "More of it."),
        ("docstring", 3, "And another: `one two`."),
        ("docstring", 6, "The number."),
        ("docstring", 7, "Of rows."),
        ("docstring", 8, "Something else."),
        ("docstring", 14, "Requests that may wait."),
        ("comment", 15, "A comment of two lines."),
        ("comment", 18, "A reason."),
        ("docstring", 24, "Return the sentence."),
    ]
    messages = [
        ("message", 26, "not found"),
        ("message", 27, "the queue of {...} is full, with {...} requests"),
    ]
    assert read("app/one.py", PYTHON) == in_tests + messages
    assert read("tests/one.py", PYTHON) == in_tests


def test_help_texts_are_messages() -> None:
    """Help texts of any length are messages; other short strings are data."""
    source = 'option("--rows", help="Rows to send", default="some rows")\n'
    assert read("app/one.py", source) == [("message", 1, "Rows to send")]


def test_code_in_docstrings_is_left_out() -> None:
    """Code is in fences, or indented after two colons."""
    source = '''\
    """Send it::

        Nothing of this.

    Then wait.

    ```
    Nor this.
    ```
    """
    '''
    assert [text for _, _, text in read("app/one.py", source)] == ["Send it::", "Then wait."]


def test_examples_in_help_texts_are_left_out() -> None:
    """They are indented after click's mark for text that keeps its lines."""
    source = '"""Send it.\n\n\\b\ncohort bench   nothing of this\n\nThen wait."""\n'
    assert [text for _, _, text in read("app/one.py", source)] == ["Send it.", "Then wait."]


def test_paragraphs_items_and_cells_of_markdown() -> None:
    """Links and emphasis are read as text, and code spans stay; blocks of code are left out."""
    source = """\
    ---
    title: Not this
    ---
    # A title

    One **line**.
    A [second](https://example.org) of `a b`.

    <!-- not this -->
    - An item.

    ```sh
    echo Not this
    ```

    | a key | a value |
    |---|---|
    | `rows` | Their number. |
    """
    assert read("docs/a.md", source) == [
        ("heading", 4, "A title"),
        ("paragraph", 6, "One line."),
        ("paragraph", 7, "A second of `a b`."),
        ("paragraph", 10, "An item."),
        ("heading", 16, "a key"),
        ("heading", 16, "a value"),
        ("cell", 18, "`rows`"),
        ("cell", 18, "Their number."),
    ]


def test_comments_and_texts_of_javascript() -> None:
    """Strings that read as phrases are texts, with their placeholders; others are data."""
    source = """\
    // A comment.
    /**
     * Draw it.
     * @param {Record<string, number>} rows Their number.
     */
    const text = `there are ${rows} rows in the batch`;
    const path = "/not/a // comment", name = "a name";
    """
    assert read("page/a.js", source) == [
        ("comment", 1, "A comment."),
        ("comment", 3, "Draw it."),
        ("comment", 4, "Their number."),
        ("message", 6, "there are {rows} rows in the batch"),
    ]


SHELL = """\
#!/bin/sh
# A comment of
# two lines.
name=${1##*/}  # A reason.
# shellcheck disable=SC2086
echo "cohort: the folder $name is not there; see '$(pwd)/#1'"
sed 's/a # b/c/' "some file"
"""


def test_comments_and_texts_of_shell_scripts() -> None:
    """Strings that read as phrases are texts, with their placeholders; others are data."""
    found = [
        ("comment", 2, "A comment of two lines."),
        ("comment", 4, "A reason."),
        ("message", 6, "the folder {...} is not there; see '{...}/#1'"),
    ]
    assert read("deploy/a.sh", SHELL) == found
    assert read(".ci/run", SHELL) == found


def test_help_texts_of_makefiles() -> None:
    """The texts that `make help` prints are comments, and recipes have texts as scripts do."""
    source = """\
    # Ray is large.
    ray: .venv-ray/ray.stamp  ## Serve on Ray
    \t@echo "cohort: fetching $(SIZE) into $(@D) for the tests"
    """
    assert read("Makefile", source) == [
        ("comment", 1, "Ray is large."),
        ("comment", 2, "Serve on Ray"),
        ("message", 3, "fetching {...} into {...} for the tests"),
    ]


def test_texts_of_html() -> None:
    """Scripts and styles are not text."""
    source = "<p>Hello.\n<b>You.</b></p>\n<script>not this</script>\n"
    assert read("page/a.html", source) == [("message", 1, "Hello."), ("message", 2, "You.")]


@pytest.mark.parametrize(
    "text", ["e.g. The first", "version 1.2 of it", "file.py is read", "A? b", "It ends... Later"]
)
def test_not_every_dot_ends_a_sentence(text: str) -> None:
    """Abbreviations, numbers, names and ellipses do not."""
    assert len(read("README.md", text)) == 1


def test_other_files_have_no_text() -> None:
    """Files of an unknown kind have no passages."""
    assert find_passages("Dockerfile", "# A comment.\n") == []
