"""The work behind LitServe. PORT is the port, WORKERS the processes that run it."""

import os

import litserve
from fastapi import Request
from PIL import Image
from work import make  # type: ignore[import-not-found]


class Api(litserve.LitAPI):
    """Takes a form with a file, or an object with a text."""

    def setup(self, device: str) -> None:
        self.work = make()

    def decode_request(self, request: Request) -> object:
        return Image.open(request["image"].file) if "image" in request else request["text"]

    def predict(self, sent: object) -> dict[str, object]:
        return self.work.label(sent)

    def encode_response(self, output: dict[str, object]) -> dict[str, object]:
        return output


if __name__ == "__main__":
    litserve.LitServer(
        Api(), accelerator="cpu", workers_per_device=int(os.environ["WORKERS"])
    ).run(
        port=int(os.environ["PORT"]), host="127.0.0.1", generate_client_file=False,
        log_level="warning",
    )  # fmt: skip
