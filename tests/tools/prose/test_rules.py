"""`python -m tools.prose` finds sentences that are not plain English, and no others."""

from __future__ import annotations

import pytest

from tools.prose.rules import Rule, check


def find(sentence: str) -> list[Rule]:
    """Return the rules that a docstring with `sentence` breaks."""
    return [one.rule for one in check("app/one.py", f'"""{sentence}"""\n')]


@pytest.mark.parametrize(
    "sentence",
    [
        "What keeps its caller on a variant.",
        "What a second brings: see if the peer is there.",
        "What is left when the runs have ended.",
        "Whether all models were looked for once, and fetched.",
        "Whether a run has several threads.",
        "What is left of its needs.",
        "What may have been sent.",
        "How soon the parent learns that connections have closed.",
        "How many more requests may be queued.",
        "Of the output.",
        "Whose request is answered first.",
        "Who would be too late is refused at once.",
        "what certificates contain",
    ],
)
def test_a_clause_is_not_a_sentence(sentence: str) -> None:
    """It has no main verb, or a person as its subject where the noun is a request."""
    [found] = check("app/one.py", f'"""{sentence}"""\n')
    assert found.rule is Rule.OPENER
    assert f'"{sentence.split(maxsplit=1)[0].lower()} ..."' in found.advice


@pytest.mark.parametrize(
    "sentence",
    [
        "Return the sticky key, or a connection id if `sticky` is None.",
        "What a second brings is measured.",
        "What it takes follows from the number of rows.",
        "What may be coalesced does not depend on the machine.",
        "What is asked for when the queue is full has to wait.",
        "How many there are depends on the model.",
        "Whether it pays is measured.",
        "What happens if a file changes?",
        "How to add a model.",
        "Of course.",
        "What else",
        '"Who" and "whose" are returned.',
        "Of these, two are needed.",
    ],
)
def test_a_main_verb_makes_a_sentence(sentence: str) -> None:
    """Questions, quoted words and two idioms pass as well."""
    assert find(sentence) == []


@pytest.mark.parametrize(
    ("sentence", "word", "instead"),
    [
        ("It holds up nobody.", "nobody", "no client"),
        ("Put it beside the model.", "beside", "next to"),
        ("A text is no number.", "is no", "is not a"),
        ("It has a thread of its own.", "of its own", "a separate"),
        ("The caller is Told.", "Told", "report"),
        ("It is measured, too.", "too", "also"),
    ],
)
def test_banned_words_come_with_plain_ones(sentence: str, word: str, instead: str) -> None:
    """The words that stand there are named as they are written, with others to use."""
    [found] = check("app/one.py", f'"""{sentence}"""\n')
    assert found.rule is Rule.BANNED
    assert f'instead of "{word}" say: ' in found.advice
    assert instead in found.advice


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no batching window.",
        "It is no longer served.",
        "Call `nobody` first.",
        "The file `nobody.txt` is read.",
        "See https://example.org/beside for more.",
        "Read the mended_file.",
        "The letters TLS stand for a protocol.",
    ],
)
def test_banned_words_are_whole_and_outside_code(sentence: str) -> None:
    """Names, addresses and usual phrases pass."""
    assert find(sentence) == []


def test_a_sentence_has_25_words_at_most() -> None:
    """A code span counts as one word, and a dash as none."""
    assert find("Count " + "words " * 24) == []
    assert find("Count " + "words " * 25) == [Rule.LONG]
    assert find("Count - `one two three` " + "words " * 23) == []
    assert find("Count e.g. " + "Words " * 24) == [Rule.LONG]
    assert find(("Count " + "words " * 20 + "here. ") * 2) == []


def test_documents_have_one_sentence_per_line() -> None:
    """Each other paragraph is found once. Tables and headings are not checked."""
    plain = (
        "# A title. Two.\n\nOne sentence.\nAnother one.\n\n- An item.\n\n| a |\n|---|\n| B. C. |\n"
    )
    assert check("README.md", plain) == []
    for text in ("One. Two. Three.", "One that\nhas two lines.", "- One. Two."):
        [found] = check("README.md", f"# Title\n\n{text}\n")
        assert (found.rule, found.line) == (Rule.LINE, 3)


def test_headings_may_be_clauses() -> None:
    """Banned words are found in headings as well."""
    assert check("README.md", "# What it keeps\n") == []
    assert [one.rule for one in check("README.md", "# Beside it\n")] == [Rule.BANNED]


def test_bounds_have_one_vocabulary() -> None:
    """Constants for bounds must be named MAX_ or MIN_; those of other modules are exempt."""
    source = "_MOST_ROWS = 3\nLEAST_TIME: float = 1.0\nMAX_SIZE = MOST_OTHERS\nmost_rows = 1\n"
    found = check("app/one.py", source)
    assert [(one.line, one.advice) for one in found] == [
        (1, "name it _MAX_ROWS"),
        (2, "name it MIN_TIME"),
    ]


def test_a_finding_is_one_line() -> None:
    """The line has the path, the line number, the whole sentence and the advice, as for linters."""
    [found] = check("docs/a.md", "Plain text.\n\nIt holds up\nnobody.\n")[:1]
    assert str(found).startswith('docs/a.md:3: It holds up nobody. … instead of "nobody" say: ')
