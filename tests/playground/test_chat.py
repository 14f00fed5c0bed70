"""The chat with a language model, in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import MODELS, Cohort
from tests.playground.visiting import opened, press

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

ABOUT = {"context_length": 512, "chat": True, "cache_bytes": 1 << 20}


class Answers:
    """Answers of `/v1/chat/completions`, which keep the requests.

    events: The events of each answer, in order; the last one is repeated. None: no answer ever.
    """

    def __init__(self, *events: list[Any] | None) -> None:
        self.events = list(events)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, route: Route) -> None:
        self.asked.append(json.loads(route.request.post_data or ""))
        events = self.events.pop(0) if len(self.events) > 1 else self.events[0]
        if events is not None:
            lines = [f"data: {one if isinstance(one, str) else json.dumps(one)}" for one in events]
            route.fulfill(content_type="text/event-stream", body="\n\n".join(lines) + "\n\n")


def said(*texts: str, finish: str = "stop") -> list[Any]:
    """Return the events of a complete answer."""
    parts = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(texts)}}
    return [*parts, end, usage, "[DONE]"]


@pytest.fixture
def page(chromium: Browser, bundled: Cohort) -> Iterator[Page]:
    """The page of a language model, which the server's iris model plays."""

    def describe(route: Route) -> None:
        model = httpx.get(f"{bundled.url}/models/iris").json()
        for version in model["versions"]:
            version["language_model"] = ABOUT
        route.fulfill(json=model)

    chromium.page.route(f"{bundled.url}/models/iris", describe)
    yield opened(chromium, bundled, "/models/iris")
    chromium.page.unroute_all()
    chromium.complaints.clear()


def answering(page: Page, *events: list[Any] | None) -> Answers:
    """Answer the page's requests."""
    answers = Answers(*events)
    page.route("**/v1/chat/completions", answers)
    return answers


def ask(page: Page, text: str) -> None:
    """Type a message, and send it by the keyboard."""
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def test_an_answer_is_shown_and_the_next_question_follows_it(page: Page) -> None:
    """The whole conversation is sent, with the options; the speed is shown."""
    answers = answering(page, said("Hello", ", you."), said("Yes."))
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("7")
    ask(page, "Hi")
    log, chat = page.get_by_role("log"), page.get_by_role("region", name="Chat")
    expect(log).to_contain_text("Hello, you.")
    expect(chat.get_by_role("status")).to_contain_text("2 tokens, the first after")
    ask(page, "Again?")
    expect(log).to_contain_text("Yes.")
    expect(log).not_to_have_attribute("aria-busy", "true")
    assert answers.asked[0] == {
        "model": "iris",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0,
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    roles = [one["role"] for one in answers.asked[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert answers.asked[1]["messages"][1]["content"] == "Hello, you."


def test_an_answer_stays_text(page: Page) -> None:
    """HTML in it is shown, not run."""
    answering(page, said('<img src=x onerror="document.title=1"><b>bold</b>'))
    ask(page, "HTML, please")
    expect(page.get_by_role("log")).to_contain_text("<b>bold</b>")
    assert page.locator(".log img, .log b").count() == 0


def test_a_cut_answer_shows_its_error(page: Page) -> None:
    """The text so far stays; an error event names the cause, and so does a lost connection."""
    whole = said("Once", " upon")
    error = {"error": {"message": "the server is shutting down", "type": "x"}}
    answering(page, [*whole[:2], error], whole[:1])
    ask(page, "Tell")
    alert = page.get_by_role("log").get_by_role("alert")
    expect(alert).to_have_text("The answer was cut: the server is shutting down")
    expect(page.get_by_role("log")).to_contain_text("Once upon")
    press(page, "New chat")
    expect(page.get_by_role("log")).to_be_empty()
    ask(page, "Tell")
    expect(alert).to_have_text("The answer was cut: the connection ended.")


def test_an_answer_can_be_stopped(page: Page) -> None:
    """A question without an answer returns to the field."""
    answers = answering(page, None)
    ask(page, "Are you there?")
    press(page, "Stop")
    expect(page.get_by_role("region", name="Chat").get_by_role("status")).to_have_text("Stopped.")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.get_by_label("Message")).to_have_value("Are you there?")
    expect(page.get_by_label("Message")).to_be_focused()
    answers.events = [said("Yes.", finish="length")]
    press(page, "Send")
    status = page.get_by_role("region", name="Chat").get_by_role("status")
    expect(status).to_contain_text("The answer ended at its limit of tokens.")
    assert len(answers.asked[-1]["messages"]) == 1


def test_a_refused_question_says_why(page: Page) -> None:
    """The error is in OpenAI's form."""

    def refuse(route: Route) -> None:
        error = {"message": "the prompt has 600 tokens; the limit is 512", "type": "x"}
        route.fulfill(status=400, json={"error": error})

    page.route("**/v1/chat/completions", refuse)
    ask(page, "Long")
    expect(page.get_by_role("log").get_by_role("alert")).to_have_text(
        re.compile("600 tokens; the limit is 512")
    )


@pytest.mark.skipif(not (MODELS / "smalltalk").exists(), reason="the model is not bundled")
def test_the_bundled_model_answers(chromium: Browser, bundled: Cohort) -> None:
    """Its answer arrives in parts, until it ends or is stopped."""
    page = opened(chromium, bundled, "/models/smalltalk")
    ask(page, "Hello, how are you?")
    status = page.get_by_role("region", name="Chat").get_by_role("status")
    expect(status).to_contain_text("tokens, the first after")
    assert page.locator(".message.assistant .text").inner_text().strip()
    assert chromium.complaints == []
