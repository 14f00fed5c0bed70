"""The work behind BentoML. THREADS is how many of them run it."""

import os

import bentoml
from PIL.Image import Image
from work import make  # type: ignore[import-not-found]


@bentoml.service(threads=int(os.environ["THREADS"]))
class Labels:
    """Takes a form with a file, or an object with a text."""

    def __init__(self) -> None:
        self.work = make()

    @bentoml.api
    def picture(self, image: Image) -> dict:
        return self.work.label(image)

    @bentoml.api
    def text(self, text: str) -> dict:
        return self.work.label(text)
