"""The windows of a subscription on the page, as agents use them up."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import Start
from tests.e2e.subscription import Account, Quota, selling
from tests.e2e.test_plans import config, subscribe
from tests.harness import stopped
from tests.web.console import Console

from .conftest import DESK

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
def account() -> Iterator[Account]:
    """A subscription whose shorter window takes a minute, of which each call takes 20 %."""
    with selling(Quota("5h", 60.0, 0.2), Quota("7d", 600.0, 0.001), w5h=0.7, w7d=0.8) as made:
        yield made


def test_windows_are_bars_and_name_the_runs_that_wait(
    start: Start, account: Account, browser: Browser
) -> None:
    daemon = start(config=config(account))
    console = Console(daemon)
    context = browser.new_context(viewport=DESK, base_url=console.origin)
    page = context.new_page()
    page.goto(console.link)
    page.goto("/plans")
    expect(page.get_by_text("No subscription is known.")).to_be_visible()
    with daemon.client() as client:
        run = subscribe(client, 9, name="subscriber")
        card = page.locator(".card").filter(has_text="5h")
        expect(card).to_contain_text("agents may use 70 %")
        expect(card.get_by_role("link", name=run)).to_be_visible()
        expect(card.get_by_role("meter")).to_have_attribute(
            "aria-valuetext", re.compile(r"[78]\d % used")
        )
        expect(card).to_contain_text("resets at")
        page.goto(f"/runs/{run}")
        expect(page.locator(".facts")).to_contain_text(
            re.compile(r"plan.*about \d+ % of the 5h window of anthropic")
        )
        page.goto("/")
        expect(page.locator(".headline")).to_contain_text("% of the")
        stopped(client, everything=True, grace=0)
    context.close()
    console.end()
