"""The control plane: the interface for operators, as adapters see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cohort.operating.description import Description
from cohort.operating.drawings import Drawings
from cohort.operating.live import LiveView
from cohort.operating.readiness import Readiness
from cohort.operating.reading import ModelReader


class ControlPlane(Protocol):
    """What operators may read and do: of one process, or of all workers of a host.

    A view shows what a caller may see, as this process has it.

    live: What all versions do, second by second.
    drawings: The graphs of models.
    """

    live: LiveView
    drawings: Drawings

    @property
    def draining(self) -> bool:
        """Whether the process has begun to stop; never reset."""

    def begin_draining(self) -> None:
        """Report not ready from now on; requests are still answered."""

    def seen_by(self, models: frozenset[str] | None) -> ModelReader:
        """What callers may read who may see `models`; None: all of them."""

    # -- health

    def readiness(self, view: ModelReader | None = None) -> Readiness:
        """Whether to send traffic. The reason names only models in `view`; default: all."""

    def liveness(self) -> Readiness:
        """Whether no restart is needed. The reason names no model."""

    async def health(self, view: ModelReader) -> Description:
        """A summary for people and simple checks."""

    # -- models

    async def models(self, view: ModelReader) -> Description:
        """Every model with the states of its versions."""

    async def model(self, view: ModelReader, name: str) -> Description:
        """One model with its versions in full, and its rollout if any. Raises ModelNotFound."""

    async def load(self, name: str) -> None:
        """Load a model that was unloaded, retry versions that failed, and wait until that is done.

        Raises ModelNotFound, or NotReady with the reason where a version could not be loaded.
        """

    async def unload(self, name: str) -> None:
        """Unload a model until `load` or a restart. Requests in flight finish.

        Raises ModelNotFound, or NotReady where it could not be done everywhere.
        """

    # -- rollouts

    async def rollouts(self) -> Description:
        """Every rollout by model."""

    async def roll_back(self, name: str, variant: str) -> Description:
        """Route a variant's traffic to the baseline; give the rollout.

        Raises NotFound, InvalidInput, or NotReady where it could not be done everywhere.
        """

    async def clear(self, name: str, variant: str | None = None) -> Description:
        """Clear the decisions about a variant, or about all variants; give the rollout.

        Raises NotFound, or NotReady where it could not be done everywhere.
        """

    async def shadow_examples(self, name: str) -> list[Description]:
        """The most recent requests on which the shadow disagreed. Raises NotFound."""

    # -- metrics

    async def metrics_text(self, accept: str) -> tuple[Sequence[bytes], str]:
        """The metrics in the format that an Accept header prefers, in blocks; its content type."""
