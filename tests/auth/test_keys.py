"""The file of API keys: its valid contents, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.auth import ApiKey, digest_of, load_keys, new_key, parse_keys
from cohort.repository import ConfigProblems

DIGEST = digest_of("key").hex()
OTHER = digest_of("other").hex()


def problems(text: str, reserved: str = "") -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        parse_keys(text, "keys.yaml", reserved=reserved)
    return str(caught.value).splitlines()


def test_an_entry_needs_a_name_and_a_digest_only() -> None:
    """Everything else may be left out, and then limits nothing."""
    (key,) = parse_keys(f'- {{name: web, sha256: "{DIGEST}"}}', "keys.yaml")
    assert key == ApiKey("web", DIGEST)
    assert (key.models, key.rate, key.concurrency, key.admin) == (None, None, None, False)


def test_a_caller_may_be_known_by_its_certificate() -> None:
    """An entry has a key, a certificate or both; one of them is required."""
    text = "- {name: web, certificate: web.internal}"
    (key,) = parse_keys(text, "keys.yaml")
    assert key == ApiKey("web", certificate="web.internal")
    (key,) = parse_keys(f"{text[:-1]}, sha256: '{DIGEST}'}}", "keys.yaml")
    assert (key.sha256, key.certificate) == (DIGEST, "web.internal")
    assert problems("- {name: web}") == [
        "keys.yaml: [0]: must have one of sha256, certificate, subject"
    ]
    assert problems(f"{text}\n- {{name: other, certificate: web.internal}}") == [
        "keys.yaml: [1].certificate: is the same as [0]'s"
    ]


def test_a_caller_may_be_known_by_the_subject_of_its_tokens() -> None:
    """The subject `*` accepts any token, so it cannot be an admin."""
    (key,) = parse_keys("- {name: web, subject: auth0|64}", "keys.yaml")
    assert key == ApiKey("web", subject="auth0|64")
    (key,) = parse_keys('- {name: staff, subject: "*"}', "keys.yaml")
    assert key == ApiKey("staff", subject="*")
    assert problems('- {name: staff, subject: "*", admin: true}') == [
        "keys.yaml: [0].admin: every token holder would be an admin; name the subjects"
    ]
    for wrong in ("''", "' web'", '"a\\nb"', "x" * 256):
        (said,) = problems(f"- {{name: web, subject: {wrong}}}")
        assert "is not a valid 'sub' of a token" in said
    (said,) = problems("- {name: web, subject: 12}")
    assert said == "keys.yaml: [0].subject: must be a string, got 12"


def test_an_entry_says_what_its_key_may() -> None:
    """Models, requests per second, requests at once; upper-case digits are the same digest."""
    (key,) = parse_keys(
        f"- {{name: web, sha256: '{DIGEST.upper()}', models: [iris], rate: 100, concurrency: 10,"
        " priority: 1}",
        "keys.yaml",
    )
    assert key == ApiKey("web", DIGEST, models=("iris",), rate=100, concurrency=10, priority=1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("modles: [iris]", "[0]: unknown key 'modles'; did you mean 'models'?"),
        ("rate: 0", "[0].rate: must be from 0.001 to 1000000 (requests per second), got 0"),
        ("rate: fast", "[0].rate: must be a number, got the string 'fast'"),
        ("concurrency: 0.5", "[0].concurrency: must be from 1 to 1000000, got 0.5"),
        ("priority: 2", "[0].priority: must be from -1 to 1 (1 goes first, -1 last), got 2"),
        ("priority: high", "[0].priority: must be a whole number, got the string 'high'"),
        ("admin: yes", "[0].admin: must be true or false, got the string 'yes'"),
        ("certificate: ' web'", "[0].certificate: ' web' is not a valid name in a certificate"),
        ("certificate: ''", "[0].certificate: '' is not a valid name in a certificate"),
        ("models: iris", "[0].models: must be a list, got the string 'iris'; write [iris]"),
        (
            "models: ['*']",
            "[0].models: '*' is not a model's name; leave 'models' out for all",
        ),
        (
            "admin: true, models: [iris]",
            "[0].models: an admin sees every model; leave 'models' out",
        ),
    ],
)
def test_a_wrong_entry_is_named_with_its_place(more: str, said: str) -> None:
    """The error has the file, the path of the key in it, and the right value."""
    assert f"keys.yaml: {said}" in problems(f'- {{name: web, sha256: "{DIGEST}", {more}}}')


def test_a_digest_that_is_none_is_not_repeated() -> None:
    """An invalid digest is not repeated in the error, because it may be the key."""
    (said,) = problems("- {name: web, sha256: my-secret-key}")
    assert said.startswith("keys.yaml: [0].sha256: must be the key's SHA-256")
    assert "my-secret-key" not in said


def test_names_and_keys_are_there_once() -> None:
    """Names must be unique, since the log and metrics use them; `admin` may be reserved."""
    text = f'- {{name: a, sha256: "{DIGEST}"}}\n- {{name: a, sha256: "{DIGEST}"}}'
    assert problems(text) == [
        "keys.yaml: [1].name: 'a' is already the name of [0]",
        "keys.yaml: [1].sha256: is the same as [0]'s",
    ]
    admin = f'- {{name: admin, sha256: "{OTHER}"}}'
    assert problems(admin, "admin") == [
        "keys.yaml: [0].name: 'admin' is reserved for COHORT_ADMIN_TOKEN"
    ]
    assert parse_keys(admin, "keys.yaml")


@pytest.mark.parametrize("text", ["", "# nothing yet", "web: key", "[1]", "- {name: a}", "{"])
def test_what_is_no_list_of_entries_is_refused(text: str) -> None:
    """An empty file is refused as well, since it was probably cut off. `[]` lets no client call."""
    assert problems(text)
    assert parse_keys("[]", "keys.yaml") == []


def test_a_file_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    """Keys are asked for, so that there have to be some."""
    with pytest.raises(ConfigProblems, match=r"keys\.yaml: is missing"):
        load_keys(tmp_path / "keys.yaml")


def test_new_keys_differ_and_fit_in_a_header() -> None:
    """A key has 256 random bits, in letters that need no escape."""
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("cohort_") and key.isascii() and len(key) == 50 for key in keys)
