"""The arguments of the application, as `args` in a Serve config."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Scale(BaseModel):
    """The number of replicas of a deployment.

    replicas: A fixed number; default None: between `min_replicas` and `max_replicas`.
    min_replicas, max_replicas: The limits of autoscaling; default: 1 and 4.
    queue_ms: Mean time of requests in the queue above which replicas are added, in ms; default: 20.
    max_replicas_per_node: Default None: no limit.
    upscale_delay_s, downscale_delay_s: Time that a decision must hold before replicas are added or
        removed, in seconds; default: 3 and 60.
    cpus: CPUs that Ray reserves for a replica; default: 0.5.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    replicas: int | None = Field(None, ge=1)
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(4, ge=1)
    queue_ms: float = Field(20, gt=0)
    upscale_delay_s: float = Field(3, ge=0)
    downscale_delay_s: float = Field(60, ge=0)
    max_replicas_per_node: int | None = Field(None, ge=1, le=100)
    cpus: float = Field(0.5, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError("min_replicas must not be larger than max_replicas")
        return self


class Arguments(Scale):
    """The arguments of `build`; those of `Scale` are for the deployment of all models.

    models: The folder of models, at the same path on all nodes, or its address.
    models_per_replica: Models that a replica has loaded at a time; Ray then prefers replicas that
        have the model of a request. Default None: all.
    dedicated: Models that get a deployment each, which scales alone; default: none.
    settings: Further settings of `cohort serve`, by their names. `state` must be a folder that all
        nodes share if there are rollouts.
    retries: The maximum repetitions of a request whose replica died, on another one; default: 5.
    """

    models: str = "models"
    models_per_replica: int | None = Field(None, ge=1)
    dedicated: dict[str, Scale] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    retries: int = Field(5, ge=0)

    @field_validator("models")
    @classmethod
    def _named(cls, models: str) -> str:
        if not models.strip():
            raise ValueError("name a folder of models, or an address such as s3://bucket/models")
        return models

    @field_validator("settings")
    @classmethod
    def _without_models(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if "models" in settings:
            raise ValueError("must not have models, a separate argument")
        return settings
