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
    """Reads and actions of operators, for one process or for all workers of a host.

    A view contains the models that a caller may see, as this process has them.

    live: The activity of all versions, second by second.
    drawings: The graphs of models.
    """

    live: LiveView
    drawings: Drawings

    @property
    def draining(self) -> bool:
        """True once the process has begun to stop; never reset."""

    def begin_draining(self) -> None:
        """Report not ready from now on; requests are still answered."""

    def limited_to(self, models: frozenset[str] | None) -> ModelReader:
        """Return a reader for callers with access to `models`; None: all models."""

    # -- health

    def readiness(self, view: ModelReader | None = None) -> Readiness:
        """Return whether to send traffic. The reason names only models in `view`; default: all."""

    def liveness(self) -> Readiness:
        """Return whether the process can go without a restart. The reason names no model."""

    async def health(self, view: ModelReader) -> Description:
        """Return a summary for people and simple checks."""

    # -- models

    async def models(self, view: ModelReader) -> Description:
        """Return every model with the states of its versions."""

    async def model(self, view: ModelReader, name: str) -> Description:
        """Return one model with its versions in full, and any rollout. Raises ModelNotFound."""

    async def load(self, name: str) -> None:
        """Load a model that was unloaded, or retry its failed versions, and wait for the result.

        Raises ModelNotFound, or NotReady with the reason if a version could not be loaded.
        """

    async def unload(self, name: str) -> None:
        """Unload a model until `load` or a restart. Requests in flight finish.

        Raises ModelNotFound, or NotReady if a worker could not unload it.
        """

    # -- rollouts

    async def rollouts(self) -> Description:
        """Return every rollout by model."""

    async def roll_back(self, name: str, variant: str) -> Description:
        """Route a variant's traffic to the baseline, and return the rollout.

        Raises NotFound, InvalidInput, or NotReady if a worker could not do it.
        """

    async def clear(self, name: str, variant: str | None = None) -> Description:
        """Clear the decisions about a variant, or about all variants, and return the rollout.

        Raises NotFound, or NotReady if a worker could not do it.
        """

    async def shadow_examples(self, name: str) -> list[Description]:
        """Return the most recent requests on which the shadow disagreed. Raises NotFound."""

    # -- metrics

    async def metrics_text(self, accept: str) -> tuple[Sequence[bytes], str]:
        """Return the metrics in blocks, in the format of an Accept header, and the content type."""
