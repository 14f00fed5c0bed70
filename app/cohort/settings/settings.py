"""The settings of the process: `COHORT_*` variables and `cohort serve` options of the same names.

The environment is read when `Settings()` is made, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from cohort.errors import MODEL_NAME, ConfigInvalid, did_you_mean, quoted
from cohort.notifications.webhooks import check_addresses
from cohort.settings.platform_source import PlatformEnvironment
from cohort.settings.service_variables import OwnEnvironment
from cohort.settings.values import (
    check_token,
    check_watchdog,
    default_cache,
    default_log_format,
    default_state,
    read_folders,
    read_health_route,
    read_hosts,
    read_key_prefix,
    read_listened,
    read_models,
    read_origins,
    read_predict_route,
    read_providers,
    read_root_path,
    read_workers,
)
from cohort.system.platforms import platform_settings
from cohort.system.remote_address import mirror_folder

PREFIX = "COHORT_"


class SettingsInvalid(ConfigInvalid):
    """Invalid settings. `problems` has a sentence for each, by field name."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        name, problem = next(iter(self.problems.items()))
        super().__init__("", variable(name), problem)
        self.message = "\n".join(f"{variable(name)}: {text}" for name, text in problems.items())


def _sibling(data: dict[str, Any]) -> Path:
    folder = data["models"] if isinstance(data["models"], Path) else Path("models")
    return folder.absolute().parent / "rollouts.yaml"


class Settings(BaseSettings):
    """All settings of the process. Arguments override the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    models: Annotated[Path | str, BeforeValidator(read_models)] = Field(
        Path("models"),
        description="Folder with <name>/<version>/model.onnx, or its address, such as "
        "s3://bucket/models.",
    )
    model_name: str | None = Field(
        None,
        pattern=f"^({MODEL_NAME.pattern})?$",
        description="Name of the model if the folder is one model, such as a single .onnx file or "
        "<version>/model.onnx.",
        json_schema_extra={"default": "the folder has a subfolder for each model"},
    )
    multi_model: bool = Field(
        False, description="Load models only by the /models routes of SageMaker."
    )
    rollouts: Path = Field(
        default_factory=_sibling,
        description="File that splits traffic between versions.",
        json_schema_extra={"default": "rollouts.yaml next to the models folder"},
    )
    state: Path = Field(
        default_factory=default_state,
        description="Folder for the server's decisions, such as rollbacks.",
        json_schema_extra={"default": "the folder cohort in the user's state folder"},
    )
    cache: Path = Field(
        default_factory=default_cache,
        description="Folder for profiles, verdicts, graphs and weights; safe to delete.",
        json_schema_extra={"default": "the folder cohort in the user's cache folder"},
    )
    host: Annotated[str, BeforeValidator(read_listened)] = Field(
        "127.0.0.1",
        description="Addresses to listen on, separated by commas, such as 127.0.0.1,::1; :: means "
        "all addresses, IPv6 and IPv4.",
    )
    uds: Path | None = Field(
        None,
        description="Unix socket for HTTP, instead of the port.",
        json_schema_extra={"default": "the port"},
    )
    port: int = Field(8000, ge=0, le=65535, description="Port for HTTP; 0 chooses a free one.")
    root_path: Annotated[str, BeforeValidator(read_root_path)] = Field(
        "",
        description="Path prefix that a proxy keeps, such as /ml; paths without it also work.",
    )
    predict_route: Annotated[str, BeforeValidator(read_predict_route)] = Field(
        "", description="Another path for /invocations, such as Vertex AI's AIP_PREDICT_ROUTE."
    )
    health_route: Annotated[str, BeforeValidator(read_health_route)] = Field(
        "", description="Another path for /health/ready, such as Vertex AI's AIP_HEALTH_ROUTE."
    )
    grpc_port: int = Field(8001, ge=0, le=65535, description="Port for gRPC; 0 disables gRPC.")
    grpc_max_connection_age_seconds: float = Field(
        0,
        ge=0,
        le=86400,
        description="Seconds until a gRPC client must connect again (GOAWAY), within 10 %, to "
        "reach new replicas; 0: never.",
    )
    workers: Annotated[int, BeforeValidator(read_workers)] = Field(
        1,
        ge=1,
        le=256,
        description="Number of server processes; auto: one for each core.",
    )
    hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_hosts)] = Field(
        (),
        description="Accepted values of the Host header, such as a.example,b.example:8000.",
        json_schema_extra={"default": "any host"},
    )
    trusted_keys: Path | None = Field(
        None,
        description="File or folder of public keys (Ed25519, PEM); only versions signed by one of "
        "them are served.",
        json_schema_extra={"default": "versions need no signature"},
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_origins)] = Field(
        (),
        description="Web origins that may call the server, such as https://a.example; * means all.",
        json_schema_extra={"default": "only the server's own"},
    )
    default_model: str | None = Field(
        None,
        pattern=f"^{MODEL_NAME.pattern}$",
        description="Model for requests that name none.",
        json_schema_extra={"default": "COHORT_MODEL_NAME, or the only model"},
    )
    watch_seconds: float = Field(
        2,
        ge=0,
        le=86400,
        description="Seconds between checks for changed files, up to 5 for thousands of models; "
        "0 checks only at the start.",
    )
    allow_empty: bool = Field(
        default_factory=lambda data: bool(data.get("multi_model")),
        description="Report ready even without a model to serve.",
        json_schema_extra={"default": "false; true with COHORT_MULTI_MODEL"},
    )
    max_loaded_models: int | None = Field(
        None,
        ge=1,
        description="Maximum loaded models; others load on request and replace the least recently "
        "used.",
        json_schema_extra={"default": "all models"},
    )
    max_body_mb: int = Field(
        64, ge=1, le=65536, description="Maximum size of a request body, in MiB."
    )
    max_concurrency: int = Field(
        16_384, ge=1, description="Maximum requests in progress; further ones get 429."
    )
    max_connections: int | None = Field(
        None,
        ge=1,
        description="Maximum HTTP connections; beyond that, the oldest idle ones are closed.",
        json_schema_extra={"default": "as many as the limit of open files allows"},
    )
    max_connections_per_address: int | None = Field(
        None,
        ge=1,
        description="Maximum connections of one address, or IPv6 /64, each for HTTP and gRPC; "
        "further ones get 429, or are closed for gRPC.",
        json_schema_extra={"default": "any number"},
    )
    memory_mb: int | None = Field(
        None,
        ge=1,
        description="Maximum memory of requests and responses, in MiB; beyond that, 429.",
        json_schema_extra={
            "default": "a quarter of the container's or machine's memory, less 150 MiB for each "
            "worker"
        },
    )
    max_model_mb: int | None = Field(
        None,
        ge=1,
        description="Maximum size of a model with its external data, in MiB.",
        json_schema_extra={"default": "the container's or machine's memory"},
    )
    max_nodes: int = Field(
        1_000_000,
        ge=1,
        description="Maximum nodes of a model; a function's nodes count at each call.",
    )
    custom_ops: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(read_folders)] = Field(
        (),
        description="Folders of custom operator libraries that may be loaded, joined by ':'.",
        json_schema_extra={"default": "none"},
    )
    model_code: Literal["deny", "allow"] = Field(
        "deny",
        description="Allow Python code in models' folders: the transform of a config.",
    )
    shared_memory: Annotated[str, BeforeValidator(read_key_prefix)] = Field(
        "",
        description="Prefix of shared memory keys that callers may register, such as /cohort_.",
        json_schema_extra={"default": "none"},
    )
    providers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_providers)] = Field(
        (),
        description="Execution providers, such as cuda,cpu, for models without their own.",
        json_schema_extra={"default": "all that this machine's runtime supports"},
    )
    inspection_seconds: int = Field(
        60,
        ge=0,
        le=86400,
        description="CPU seconds to inspect an unknown model; 0: no inspection.",
    )
    inspection_mb: int | None = Field(
        None,
        ge=1,
        description="Memory to inspect a model, in MiB, plus three times its size.",
        json_schema_extra={"default": "a quarter of the container's or machine's memory"},
    )
    keep_alive_seconds: int = Field(
        75, ge=1, le=86400, description="Seconds until an idle connection is closed."
    )
    admin_token: Annotated[SecretStr | None, AfterValidator(check_token)] = Field(
        None,
        description="Bearer token for the admin routes.",
        json_schema_extra={"default": "the admin routes answer 403"},
    )
    api_keys: Path | None = Field(
        None,
        description="File of API keys; 'cohort key new' makes a key.",
        json_schema_extra={"default": "callers need no key"},
    )
    jwks: Path | None = Field(
        None,
        description="File of an issuer's keys (JWKS), to accept its tokens.",
        json_schema_extra={"default": "no tokens are accepted"},
    )
    jwt_issuer: str | None = Field(
        None,
        min_length=1,
        description="Required issuer ('iss') of tokens.",
        json_schema_extra={"default": "unset; required with COHORT_JWKS"},
    )
    jwt_audience: str | None = Field(
        None,
        min_length=1,
        description="Required audience ('aud') of tokens: this server's name.",
        json_schema_extra={"default": "unset; required with COHORT_JWKS"},
    )
    metrics_key: Annotated[SecretStr | None, AfterValidator(check_token)] = Field(
        None,
        description="Bearer token for /metrics.",
        json_schema_extra={"default": "/metrics is open"},
    )
    webhooks: Annotated[SecretStr | None, AfterValidator(check_addresses)] = Field(
        None,
        description="Addresses to notify of rollbacks and ramps, separated by commas.",
        json_schema_extra={"default": "no notifications"},
    )
    webhook_secret_file: Path | None = Field(
        None,
        description="File of the secret that signs notifications; read again when it changes.",
        json_schema_extra={"default": "unset; required with COHORT_WEBHOOKS"},
    )
    tls_cert: Path | None = Field(
        None,
        description="PEM file of the server's certificate; HTTP and gRPC then use TLS.",
        json_schema_extra={"default": "plain HTTP and gRPC"},
    )
    tls_key: Path | None = Field(
        None,
        description="PEM file of the certificate's private key, without a password.",
        json_schema_extra={"default": "unset"},
    )
    tls_client_ca: Path | None = Field(
        None,
        description="PEM file of CA certificates to verify client certificates.",
        json_schema_extra={"default": "clients need no certificate"},
    )
    log_format: Literal["json", "console"] = Field(
        default_factory=default_log_format,
        description="Log format: json has an object per line.",
        json_schema_extra={"default": "console on a terminal, json otherwise"},
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="Minimum log level; admin requests and the access log are always logged.",
    )
    access_log: bool = Field(False, description="Log each request.")
    playground: bool = Field(True, description="Serve the page /playground.")
    drain_notice_seconds: float = Field(
        5,
        ge=0,
        le=86400,
        description="Seconds of serving after SIGTERM, while readiness returns 503.",
    )
    drain_seconds: int = Field(
        30, ge=0, le=86400, description="Seconds after that for requests in flight to finish."
    )
    watchdog_seconds: Annotated[float, AfterValidator(check_watchdog)] = Field(
        0,
        ge=0,
        le=86400,
        description="Seconds without progress of the event loop, after which a parent process "
        "kills the server; 0: off (systemd's WatchdogSec still applies), and 20 for workers.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's interface
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, then the environment, then what a hosting platform gives."""
        return init_settings, OwnEnvironment(settings_cls), PlatformEnvironment(settings_cls)

    @property
    def remote(self) -> str:
        """The address of the remote repository; empty if `models` is a folder."""
        return self.models if isinstance(self.models, str) and not self.multi_model else ""

    @property
    def models_folder(self) -> Path:
        """The folder that is served: `models`, or one in `cache` if that is remote.

        With `multi_model`, it is the folder in `cache` that links to the loaded models.
        """
        if self.multi_model:
            return self.cache / "multi-model"
        if isinstance(self.models, str):
            return mirror_folder(self.cache, self.models) / "models"
        return self.models


def read_settings(options: Mapping[str, object] | None = None) -> Settings:
    """Read the settings from the environment, and from `options` by field, which override it.

    Raises SettingsInvalid with a sentence for each invalid setting.
    """
    try:
        settings = Settings(**dict(options or {}))  # type: ignore[arg-type]
    except ValidationError as error:
        problems: dict[str, str] = {}
        for details in error.errors(include_url=False, include_input=True):
            if details["type"] != "default_factory_not_called":
                name = str(details["loc"][0]).lower().removeprefix("cohort_")
                problems[name] = _giver(name, details["input"]) + _explain(details)
        raise SettingsInvalid(problems) from None
    if settings.grpc_port and settings.grpc_port == settings.port:
        raise SettingsInvalid(
            {"grpc_port": f"must differ from {variable('port')}, got {settings.port}"}
        )
    if problems := _incomplete(settings):
        raise SettingsInvalid(problems)
    return settings


def _incomplete(settings: Settings) -> dict[str, str]:
    """Report settings whose required companion is missing."""
    missing = {}
    for given, needed in (
        ("tls_key", "tls_cert"),
        ("tls_client_ca", "tls_cert"),
        ("tls_cert", "tls_key"),
        ("webhooks", "webhook_secret_file"),
    ):
        if getattr(settings, given) is not None and getattr(settings, needed) is None:
            missing[needed] = f"is needed with {variable(given)}"
    tokens = ("jwks", "jwt_issuer", "jwt_audience")
    given_tokens = [name for name in tokens if getattr(settings, name) is not None]
    if given_tokens:
        first = variable(given_tokens[0])
        missing |= {name: f"is needed with {first}" for name in tokens if name not in given_tokens}
        if settings.api_keys is None:
            missing["api_keys"] = f"is needed with {first}: its entries say who may call"
    return missing


def variable(name: str) -> str:
    """Return the environment variable of a field."""
    return PREFIX + name.upper()


def _giver(name: str, value: object) -> str:
    """Return the platform's variable that gave an invalid value, or ""."""
    given = platform_settings(os.environ).get(name)
    own = os.environ.get(variable(name)) == value
    return f"{given.variable} " if given and given.value == value and not own else ""


def default_in_words(name: str) -> str:
    """Describe a default that depends on the environment; "" if the default is a constant."""
    extra = Settings.model_fields[name].json_schema_extra
    return str(extra["default"]) if isinstance(extra, dict) else ""


def _explain(details: ErrorDetails) -> str:
    kind, value = details["type"], details["input"]
    context: dict[str, Any] = details.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    shown = quoted(str(value))
    if kind.startswith("int_"):
        return f"must be a whole number, got {shown}"
    if kind.startswith("float_") or kind == "finite_number":
        return f"must be a number, got {shown}"
    if kind.startswith("bool_"):
        return f"must be true or false, got {shown}"
    if kind == "literal_error":
        return f"must be {context['expected'].replace(chr(39), '')}, got {shown}"
    if kind == "greater_than_equal":
        return f"must be >= {context['ge']:g}, got {shown}"
    if kind == "less_than_equal":
        return f"must be <= {context['le']:g}, got {shown}"
    if kind == "string_pattern_mismatch":
        return (
            "must be a model's name (at most 128 letters, digits, '.', '_' and '-', starting with "
            f"a letter or digit), got {shown}"
        )
    if kind == "path_type":
        return f"must be a path, got {shown}"
    if kind == "extra_forbidden":
        return f"is not a setting{did_you_mean(str(details['loc'][0]), Settings.model_fields)}"
    return f"is not valid: {details['msg']}"
