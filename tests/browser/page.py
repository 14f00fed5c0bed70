"""A page in headless Chromium, and its unexpected actions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.waiting import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event =>
    window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


@dataclass
class Browser:
    """A page. `complaints` are the errors and warnings on its console, and those of its scripts."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        """Return the violations that the page's Content-Security-Policy has stopped."""
        stopped: list[str] = self.page.evaluate("window.violations")
        return stopped

    def smuggle(self) -> str:
        """Add a script that is not the page's own; return the directive that stopped it.

        The browser reports it some time after it has stopped it.
        """
        self.page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.smuggled = true";
                document.body.append(script);
            }"""
        )
        assert self.page.evaluate("window.smuggled") is None
        self.page.wait_for_function("window.violations.length > 0")
        return self.violations[0].split(":")[0]

    @contextmanager
    def other_page(self, origin: str) -> Iterator[Page]:
        """A page at an origin that is nowhere but in this browser."""
        assert self.page.context.browser is not None
        page = self.page.context.browser.new_page()
        page.route(f"{origin}/", lambda route: route.fulfill(body="<p>", content_type="text/html"))
        page.goto(f"{origin}/")
        yield page
        page.close()

    def open_docs(self, url: str) -> None:
        """Show Swagger UI, and wait until it lists the routes."""
        self.page.goto(f"{url}/docs")
        self.page.locator(".opblock").first.wait_for()

    def operation(self, path: str) -> Locator:
        """The POST at `path` in Swagger UI, folded out."""
        found = self.page.locator(f'.opblock:has([data-path="{path}"])')
        found.locator(".opblock-summary").click()
        found.locator("button.execute").wait_for()
        return found


SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""Flags with which Chromium offers WebGPU, computed by SwiftShader on the CPU."""


@contextmanager
def browser(
    *, width: int = 1000, height: int = 800, flags: Sequence[str] = ()
) -> Iterator[Browser]:
    """Start Chromium with an empty page. `flags` are added to its command line."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",  # which root cannot have
                "--disable-features=LocalNetworkAccessChecks",  # pages of the Internet may call
                *flags,
            ],
        )
        page = chromium.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        started = Browser(page)
        page.add_init_script(VIOLATIONS)
        page.on("pageerror", lambda error: started.complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                started.complaints.append(message.text)
                if message.type in {"error", "warning"}
                else None
            ),
        )
        try:
            yield started
        finally:
            chromium.close()
