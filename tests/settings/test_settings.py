"""The settings of the process."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cohort.settings import (
    Settings,
    SettingsInvalid,
    default_in_words,
    read_settings,
    unknown_variables,
    variable,
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without any COHORT_* variable."""
    for name in os.environ:
        if name.upper().startswith("COHORT_"):
            monkeypatch.delenv(name)
    return monkeypatch


def problems(**options: object) -> dict[str, str]:
    with pytest.raises(SettingsInvalid) as caught:
        read_settings(options)
    return caught.value.problems


def test_defaults_are_the_contract() -> None:
    """Names and defaults as the design gives them."""
    settings = Settings()
    assert {
        name: getattr(settings, name)
        for name in Settings.model_fields
        if name not in {"rollouts", "state", "cache", "log_format"}
    } == {
        "models": Path("models"),
        "host": "127.0.0.1",
        "uds": None,
        "root_path": "",
        "predict_route": "",
        "health_route": "",
        "model_name": None,
        "multi_model": False,
        "port": 8000,
        "workers": 1,
        "grpc_port": 8001,
        "grpc_max_connection_age_seconds": 0.0,
        "default_model": None,
        "hosts": (),
        "trusted_keys": None,
        "cors_origins": (),
        "watch_seconds": 2,
        "allow_empty": False,
        "max_loaded_models": None,
        "max_body_mb": 64,
        "max_concurrency": 16_384,
        "max_connections": None,
        "max_connections_per_address": None,
        "memory_mb": None,
        "max_model_mb": None,
        "max_nodes": 1_000_000,
        "custom_ops": (),
        "model_code": "deny",
        "shared_memory": "",
        "providers": (),
        "inspection_seconds": 60,
        "inspection_mb": None,
        "keep_alive_seconds": 75,
        "admin_token": None,
        "api_keys": None,
        "jwks": None,
        "jwt_issuer": None,
        "jwt_audience": None,
        "metrics_key": None,
        "webhooks": None,
        "webhook_secret_file": None,
        "tls_cert": None,
        "tls_key": None,
        "tls_client_ca": None,
        "log_level": "info",
        "access_log": False,
        "playground": True,
        "drain_notice_seconds": 5,
        "drain_seconds": 30,
        "watchdog_seconds": 0,
    }


def test_every_setting_is_described_in_one_sentence() -> None:
    """The help of `cohort serve` is made of these."""
    for name, field in Settings.model_fields.items():
        assert field.description is not None
        assert field.description.endswith("."), name
        assert ". " not in field.description, name
        assert default_in_words(name) or field.default is not None, name


def test_environment_is_read_when_settings_are_made(environment: pytest.MonkeyPatch) -> None:
    """It is not read at import, and not later."""
    settings = Settings()
    environment.setenv("COHORT_PORT", "9000")
    assert settings.port == 8000
    assert Settings().port == 9000


def test_option_beats_the_environment(environment: pytest.MonkeyPatch) -> None:
    """A value on the command line was meant for this start."""
    environment.setenv("COHORT_PORT", "9000")
    assert read_settings({"port": "9001"}).port == 9001


def test_empty_variable_is_unset(environment: pytest.MonkeyPatch) -> None:
    """Compose files and unit files pass these along."""
    for name in Settings.model_fields:
        environment.setenv(variable(name), "")
    settings = Settings()
    assert settings.port == 8000
    assert settings.admin_token is None


def test_settings_do_not_change() -> None:
    """Their holders may rely on them."""
    with pytest.raises(ValidationError):
        setattr(Settings(), "port", 1)  # noqa: B010 - mypy would refuse the plain way


def test_models_may_be_remote(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An address is kept as it is; what is served is a folder of the cache, one for each."""
    remote = Settings(models="s3://bucket/models/", cache=tmp_path)
    assert remote.remote == "s3://bucket/models"
    assert remote.models_folder.is_relative_to(tmp_path / "remote")
    assert remote.models_folder != Settings(models="s3://b/m", cache=tmp_path).models_folder
    assert remote.rollouts == Path("rollouts.yaml").absolute()
    local = Settings(models=tmp_path)
    assert (local.remote, local.models_folder) == ("", tmp_path)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("ftp://host/models", "that starts with one of s3://, gs://"),
        ("s3://", "such as s3://bucket/models"),
        ("s3:///models", "such as s3://bucket/models"),
        ("https://user:secret@host/models", "must have no user, password"),
        ("https://host/models?signature=secret", "must have no user, password"),
        ("s3://bucket/my models", "such as s3://bucket/models"),
        ("http://[bad", "such as s3://bucket/models"),
    ],
)
def test_address_that_is_none_is_refused(
    environment: pytest.MonkeyPatch, address: str, problem: str
) -> None:
    """One with a secret in it is also refused, since it would be logged; the error hides it."""
    with pytest.raises(SettingsInvalid) as error:
        read_settings({"models": address})
    assert problem in str(error.value)
    assert "secret" not in str(error.value)


def test_rollouts_lie_beside_the_models(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are next to the models by default."""
    assert Settings(models=tmp_path / "models").rollouts == tmp_path / "rollouts.yaml"
    assert Settings().rollouts == Path.cwd() / "rollouts.yaml"
    environment.setenv("COHORT_ROLLOUTS", "other.yaml")
    assert Settings().rollouts == Path("other.yaml")


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="these have folders of their own")
def test_state_and_cache_are_the_users(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They follow the XDG directories; a relative one is ignored, and a home is not required."""
    environment.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    environment.setenv("XDG_CACHE_HOME", "relative")
    environment.setenv("HOME", str(tmp_path / "home"))
    assert Settings().state == tmp_path / "s" / "cohort"
    assert Settings().cache == tmp_path / "home" / ".cache" / "cohort"

    def homeless() -> Path:
        raise RuntimeError

    environment.setattr(Path, "home", homeless)
    assert Settings().cache.is_absolute()


def test_log_is_for_people_on_a_terminal(environment: pytest.MonkeyPatch) -> None:
    """It is JSON elsewhere; the setting overrides both."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    environment.setattr(sys, "stderr", Terminal())
    assert Settings().log_format == "console"
    environment.setattr(sys, "stderr", io.StringIO())
    assert Settings().log_format == "json"
    assert read_settings({"log_format": "console"}).log_format == "console"


def test_hosts_are_separated_by_commas(environment: pytest.MonkeyPatch) -> None:
    """This holds on the command line and in the environment, in any case."""
    environment.setenv("COHORT_HOSTS", "A.example, b.example:80,[::1]")
    assert Settings().hosts == ("a.example", "b.example:80", "[::1]")
    assert read_settings({"hosts": "c"}).hosts == ("c",)


def test_origins_are_taken_as_browsers_send_them(environment: pytest.MonkeyPatch) -> None:
    """Origins are converted to lower case, and lose the scheme's default port."""
    environment.setenv("COHORT_CORS_ORIGINS", "https://A.example:443, http://b.example:80")
    assert Settings().cors_origins == ("https://a.example", "http://b.example")
    kept = "https://a.example:80,http://[::1]:5173,capacitor://localhost"
    assert read_settings({"cors_origins": kept}).cors_origins == tuple(kept.split(","))
    assert read_settings({"cors_origins": "*"}).cors_origins == ("*",)


def test_token_is_kept_out_of_sight() -> None:
    """Printing the settings, or refusing the token, does not print it."""
    settings = read_settings({"admin_token": " hunter2 "})
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter" not in str(problems(admin_token="hunter 2"))


def test_all_wrong_settings_are_told_in_one_sentence_each() -> None:
    """Each sentence has the variable, without pydantic's own words."""
    with pytest.raises(SettingsInvalid) as caught:
        read_settings({"port": "eighty", "grpc_port": "-1", "watch_seconds": "nan", "models": 3})
    assert str(caught.value).splitlines() == [
        "COHORT_MODELS: must be a path, got '3'",
        "COHORT_PORT: must be a whole number, got 'eighty'",
        "COHORT_GRPC_PORT: must be >= 0, got '-1'",
        "COHORT_WATCH_SECONDS: must be a number, got 'nan'",
    ]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("port", "65536", "<= 65535"),
        ("port", "80.5", "whole number"),
        ("grpc_port", "8000", "COHORT_PORT"),
        ("log_format", "xml", "json or console"),
        ("log_level", "loud", "debug, info, warning or error"),
        ("access_log", "perhaps", "true or false, got 'perhaps'"),
        ("playground", "maybe", "true or false, got 'maybe'"),
        ("default_model", "../x", "a model's name"),
        ("host", "", "separated by commas"),
        ("host", "::1,", "separated by commas"),
        ("host", "[::1]:8000", "separated by commas"),
        ("hosts", "http://a", "without 'http://', got 'http://a'"),
        ("hosts", "a,,b", "got ''"),
        ("hosts", "a:x", "got 'a:x'"),
        ("cors_origins", "a.example", "with scheme, got 'a.example'"),
        ("cors_origins", "https://a.example/", "without a path or '/' at the end, got"),
        ("cors_origins", "https://a.example/app", "without a path or '/' at the end, got"),
        ("cors_origins", "https://*.a.example", "each in full or '*' for all, got"),
        ("cors_origins", "https://a.example,*", "'*' is for all origins"),
        ("cors_origins", "null", "not the one that all sandboxed pages share, got 'null'"),
        ("cors_origins", "https://ä.example", "in ASCII as browsers send it (xn--…), got"),
        ("cors_origins", "https://a.example,", "with scheme, got ''"),
        ("max_concurrency", "0", ">= 1"),
        ("drain_seconds", "-1", ">= 0"),
        ("drain_notice_seconds", "inf", "a number"),
        ("prot", "1", "not a setting"),
    ],
)
def test_value_out_of_bounds_is_refused(name: str, value: str, says: str) -> None:
    """The error contains the bounds."""
    assert says in problems(**{name: value})[name]


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(Settings.model_fields)), st.text(min_size=1))
def test_anything_is_read_or_refused_in_a_sentence(name: str, value: str) -> None:
    """No value gets an exception of another kind, nor pydantic's links."""
    said = ""
    try:
        read_settings({name: value})
    except SettingsInvalid as error:
        said = str(error)
    assert not said or re.match(r"COHORT_[A-Z_]+: \S", said)
    assert "pydantic" not in said


def test_tokens_need_an_issuer_an_audience_and_entries() -> None:
    """A setting for tokens is rejected if one of the settings that it needs is missing."""
    whole = {"api_keys": "keys.yaml", "jwks": "j", "jwt_issuer": "i", "jwt_audience": "a"}
    assert read_settings(whole).jwks == Path("j")
    for name in whole:
        (said,) = problems(**{key: value for key, value in whole.items() if key != name}).items()
        first = "COHORT_JWT_ISSUER" if name == "jwks" else "COHORT_JWKS"
        assert said[0] == name
        assert said[1].startswith(f"is needed with {first}")


def test_misspelt_variable_is_noticed() -> None:
    """An unknown variable that begins with COHORT_ is reported, with the likely name."""
    names = ["COHORT_PROT", "PATH", "COHORT_PORT", "cohort_port"]
    assert unknown_variables(dict.fromkeys(names, "1")) == [
        "COHORT_PROT is not a setting; did you mean 'COHORT_PORT'?"
    ]


SERVICE = {
    "COHORT_SERVICE_HOST": "10.96.12.7",
    "COHORT_SERVICE_PORT": "8000",
    "COHORT_SERVICE_PORT_HTTP": "8000",
    "COHORT_PORT": "tcp://10.96.12.7:8000",
    "COHORT_PORT_8000_TCP": "tcp://10.96.12.7:8000",
    "COHORT_PORT_8000_TCP_PROTO": "tcp",
    "COHORT_PORT_8000_TCP_PORT": "8000",
    "COHORT_PORT_8000_TCP_ADDR": "10.96.12.7",
    "COHORT_GRPC_PORT": "tcp://[fd00::7]:8001",
    "COHORT_GRPC_SERVICE_HOST": "fd00::7",
    "COHORT_MODELS_PORT": "udp://10.96.12.8:9000",
}
"""Variables that Kubernetes sets for the Services `cohort`, `cohort-grpc` and `cohort-models`."""


def test_variables_of_a_kubernetes_service_are_no_settings(
    environment: pytest.MonkeyPatch,
) -> None:
    """The defaults hold, and each setting that such a variable hides is named once."""
    for name, value in SERVICE.items():
        environment.setenv(name, value)
    settings = read_settings()
    assert (settings.port, settings.grpc_port) == (8000, 8001)
    hidden = [warning.partition(" ")[0] for warning in unknown_variables(SERVICE)]
    assert hidden == ["COHORT_GRPC_PORT", "COHORT_PORT"]
    assert problems(port="tcp://10.96.12.7:8000")["port"].startswith("must be a whole number")


def test_providers_are_read_as_in_a_config(environment: pytest.MonkeyPatch) -> None:
    """Short names and the config's other forms work; a mistake has a suggestion."""
    environment.setenv("COHORT_PROVIDERS", "trt, CUDAExecutionProvider,cpu")
    assert Settings().providers == ("tensorrt", "cuda", "cpu")
    assert problems(providers="gpu,cpu") == {
        "providers": "'gpu' is not an execution provider; did you mean 'cuda'?"
    }
    assert "providers" in problems(providers="cuda,")


def test_workers_are_a_number_or_one_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems other than Linux `auto` is one; more are refused there."""
    monkeypatch.setattr("cohort.settings.values.cores", lambda: 6)
    assert read_settings({"workers": "3"}).workers == 3
    assert read_settings({"workers": " Auto "}).workers == 6
    assert problems(workers="0") == {"workers": "must be >= 1, got '0'"}
    assert "whole number" in problems(workers="many")["workers"]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert read_settings({"workers": "auto"}).workers == 1
    assert problems(workers="2") == {"workers": "more than 1 needs Linux"}


def test_an_argument_with_a_typing_error_is_refused_with_the_setting_that_was_meant() -> None:
    """Arguments of `Runtime` and `create_app` have the names of settings."""
    assert problems(prot=1) == {"prot": "is not a setting; did you mean 'port'?"}
