"""One browser, one daemon and one console for the tests of a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.conftest import Start
from tests.harness import PATIENCE, Daemon
from tests.web.console import Console

CONFIG = """
[quotas]
spawns_per_hour = 100000
[budgets.users.root]
daily_usd = 1000
[agents.greeter]
command = ["sh", "-c", "echo hello $0; sleep 300", "{task}"]
description = "Greets, and sleeps"
"""
TELEPHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 800}

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    home = str(tmp_path_factory.mktemp("browser"))
    with sync_playwright() as playwright:
        # its sandbox does not start for root; what it shows here is our own
        one = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
            env=os.environ | {"HOME": home, "XDG_RUNTIME_DIR": home},
        )
        yield one
        one.close()


@pytest.fixture(scope="module")
def module_console(_daemons: Start) -> Iterator[Console]:
    one = Console(_daemons(config=CONFIG))
    yield one
    assert one.end() == 0


@pytest.fixture(scope="module")
def logged_in(browser: Browser, module_console: Console) -> Iterator[BrowserContext]:
    context = browser.new_context(
        viewport=DESK, base_url=module_console.origin, reduced_motion="reduce", timezone_id="UTC"
    )
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.goto(module_console.link)
    page.close()
    yield context
    context.close()


@pytest.fixture
def watched(share: Start) -> Daemon:
    """The daemon that the console of the file speaks to. No run of an earlier test is alive."""
    return share(config=CONFIG)


@pytest.fixture
def page(watched: Daemon, logged_in: BrowserContext) -> Iterator[Page]:  # noqa: ARG001 - its runs are stopped after the page is closed
    """A page of the console, in which no script fails and no rule of the CSP is broken."""
    one = logged_in.new_page()
    wrong: list[str] = []
    one.on("pageerror", lambda error: wrong.append(str(error)))
    one.on(
        "console",
        lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None,
    )
    yield one
    one.close()
    assert wrong == []
