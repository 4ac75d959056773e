"""Chromium for tests of pages. scripts/setup_browser installs what this needs; without it such tests are skipped."""

import contextlib
import importlib.util
import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = os.environ.get("SHARDWISE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None or importlib.util.find_spec("playwright") is None,
    reason="Chromium or playwright is missing: scripts/setup_browser installs them",
)


@contextlib.contextmanager
def started_browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def new_page(browser, complaints, reachable, **settings):
    """A page that adds to `complaints` what goes wrong on it, and each address it asks for that begins with none of `reachable`."""
    page = browser.new_page(viewport={"width": 1200, "height": 900}, **settings)
    page.set_default_timeout(60_000)
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(reachable) else complaints.append(request.url))
    return page
