"""The application builder that Serve configs name."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from cohort.ray_serve.arguments import Arguments, Scale
from cohort.ray_serve.ingress import Ingress
from cohort.ray_serve.replica import Replica, replica_class
from cohort.ray_serve.scaling import QueueTimePolicy
from cohort.settings import read_settings
from cohort.system.remote_address import anywhere

MODELS = "Models"
"""The deployment of all models; that of a dedicated one is `Model-NAME`."""

MAX_ONGOING = 256
"""Requests that a replica has at a time: it batches them itself."""

HEALTH_SECONDS = 5.0

LOOK_BACK_SECONDS = 5.0
"""Interval whose mean queue time decides on the number of replicas."""

GRPC_PORT = 8001
"""Not listened on: a service with a port reserves connections for gRPC."""

INGRESS_CPUS = 0.0
"""An ingress only passes requests on."""


def build(args: Arguments | dict[str, Any]) -> Any:
    """Return the Serve application.

    args: As `Arguments`, from `applications[].args` of a Serve config.

    Raises ValidationError or SettingsInvalid with the argument that is wrong.
    """
    given = args if isinstance(args, Arguments) else Arguments.model_validate(args or {})
    settings = settings_of(given)
    read = read_settings(settings)
    per_replica = given.models_per_replica
    pool = deployment(MODELS, replica_class(per_replica), given).bind(
        settings if per_replica is None else {**settings, "max_loaded_models": per_replica}
    )
    dedicated = {
        name: deployment(f"Model-{name}", Replica, scale).bind(
            {**settings, "max_loaded_models": 1}, name
        )
        for name, scale in given.dedicated.items()
    }
    ingress = deployment("Cohort", Ingress, given, ingress=True)
    return ingress.bind(
        pool,
        dedicated,
        max_body=read.max_body_mb << 20,
        retries=given.retries,
        multiplexed=per_replica is not None,
    )


def settings_of(given: Arguments) -> dict[str, Any]:
    """Return the settings of replicas: Ray has the ports, and folders become absolute paths."""
    return {**given.settings, "models": anywhere(given.models), "grpc_port": GRPC_PORT}


def deployment(name: str, kind: type, scale: Scale, *, ingress: bool = False) -> Any:
    """Return a deployment. An ingress scales on its requests, and replicas on their queues."""
    options: dict[str, Any] = {
        "name": name,
        "ray_actor_options": {"num_cpus": INGRESS_CPUS if ingress else scale.cpus},
        "max_ongoing_requests": 4 * MAX_ONGOING if ingress else MAX_ONGOING,
        "health_check_period_s": HEALTH_SECONDS,
        "logging_config": {"enable_access_log": False},  # a fifth of a small request's time
    }
    if scale.max_replicas_per_node is not None:
        options["max_replicas_per_node"] = scale.max_replicas_per_node
    if scale.replicas is not None:
        options["num_replicas"] = scale.replicas
    else:
        options["autoscaling_config"] = _autoscaling(scale, ingress=ingress)
    return serve.deployment(kind, **options)


def _autoscaling(scale: Scale, *, ingress: bool) -> AutoscalingConfig:
    limits: dict[str, Any] = {
        "min_replicas": scale.min_replicas,
        "max_replicas": scale.max_replicas,
        "upscale_delay_s": scale.upscale_delay_s,
        "downscale_delay_s": scale.downscale_delay_s,
    }
    if ingress:
        return AutoscalingConfig(**limits, target_ongoing_requests=MAX_ONGOING)
    policy = AutoscalingPolicy(
        policy_function=QueueTimePolicy, policy_kwargs={"queue_ms": scale.queue_ms}
    )
    return AutoscalingConfig(
        **limits,
        policy=policy,
        look_back_period_s=LOOK_BACK_SECONDS,
        metrics_interval_s=1,
    )
