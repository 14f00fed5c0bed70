"""The work behind FastAPI."""

import io

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from PIL import Image
from pydantic import BaseModel
from work import make  # type: ignore[import-not-found]

app = FastAPI()
work = make()


class Text(BaseModel):
    """A body."""

    text: str


@app.post("/picture")
async def picture(request: Request) -> dict[str, object]:
    """On a thread, so that others are not held up."""
    body = await request.body()
    return await run_in_threadpool(lambda: work.label(Image.open(io.BytesIO(body))))


@app.post("/text")
def text(body: Text) -> dict[str, object]:
    """FastAPI calls it on a thread."""
    return work.label(body.text)


@app.get("/health")
def health() -> None:
    """It is up."""
