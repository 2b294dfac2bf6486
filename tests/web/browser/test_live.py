"""A page follows what happens, also after sleep and when the daemon or the console was away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from sfad.protocol import messages as m
from sfad.protocol.types import Action, LimitKind
from tests.cli import __file__ as cli
from tests.harness import PATIENCE, PYTHON, Daemon, started, wait_until
from tests.web.console import Console

from .conftest import DESK
from .test_actions import sleeping
from .test_pages import limit, used

pytestmark = pytest.mark.needs("chromium")

COUNTING = "i=0; while read x; do i=$((i+1)); echo line $i; done"


def test_a_page_that_sleeps_catches_up_without_a_gap(
    watched: Daemon, module_console: Console, logged_in: BrowserContext, page: Page
) -> None:
    run = sleeping(watched, "counting", command=COUNTING, stdin="pipe")
    other = logged_in.new_page()
    other.goto("/")
    page.goto(f"/runs/{run}")
    with watched.client() as client:
        client.call(m.Send(id=0, run=run, data=b"\n" * 20), m.Done)
        expect(page.get_by_role("log")).to_contain_text("line 20")
        expect(other.locator(f'[data-run="{run}"]')).to_be_visible()
        logged_in.set_offline(True)  # for new connections
        module_console.hang_up()
        expect(page.locator("#banner")).to_contain_text("disconnected")
        client.call(m.Send(id=0, run=run, data=b"\n" * 20), m.Done)
        used(watched, run, turns=7)
        late = started(client, ["sleep", "300"], name="late").id
        gone = started(client, ["true"], name="over").id
        client.call(m.Wait(id=0, run=gone), m.RunReply)
        logged_in.set_offline(False)
    expect(page.get_by_role("log")).to_contain_text("line 40")
    assert page.get_by_role("log").locator(".out").all_text_contents() == [
        f"line {number}" for number in range(1, 41)
    ]
    expect(page.locator("#banner")).to_have_text("")
    expect(page.locator(".numbers")).to_contain_text("7")
    expect(other.locator(f'[data-run="{late}"]')).to_contain_text("running")
    expect(other.locator(f'[data-run="{gone}"]')).to_contain_text("completed")
    numbers = page.locator("[data-seq]").evaluate_all(
        "all => all.map(each => Number(each.dataset.seq))"
    )
    assert numbers == sorted(set(numbers))
    other.close()


def test_a_daemon_that_is_away_is_told_and_comes_back(watched: Daemon, page: Page) -> None:
    run = sleeping(watched, "survivor", limit(LimitKind.TURNS, 10))
    page.goto("/")
    row = page.locator(f'[data-run="{run}"]')
    expect(row).to_contain_text("running")
    watched.kill()
    expect(page.locator("#banner")).to_contain_text("disconnected")
    expect(page.locator("#banner")).to_contain_text("reconnecting")
    expect(row).to_contain_text("running")  # what was known stays
    row.get_by_role("button", name="Pause").click()
    expect(page.locator(".note.bad")).to_contain_text("away", timeout=90_000)
    watched.restart()
    expect(page.locator("#banner")).to_have_text("")
    used(watched, run, turns=4)
    expect(row.get_by_role("meter", name="turns")).to_have_attribute("aria-valuenow", "4")


def test_a_page_goes_on_when_its_console_starts_again(watched: Daemon, browser: Browser) -> None:
    console = Console(watched)
    context = browser.new_context(viewport=DESK, base_url=console.origin)
    page = context.new_page()
    page.goto(console.link)
    expect(page.locator(".headline")).to_contain_text("live")
    console.end()
    expect(page.locator("#banner")).to_contain_text("disconnected from the console")
    again = Console(watched, port=console.port)
    expect(page.locator("#banner")).to_have_text("")
    page.reload()
    expect(page.locator(".headline")).to_contain_text("live")
    page.get_by_label("Menu").click()
    page.get_by_role("button", name="Log out all browsers").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    context.close()
    again.end()


def test_an_ended_agent_goes_on_in_a_new_run(
    watched: Daemon, browser: Browser, tmp_path: Path
) -> None:
    for each in ("bin", "home"):
        (tmp_path / each).mkdir()
    program = tmp_path / "bin" / "claude"
    program.write_text(f'#!/bin/sh\nexec {PYTHON} {Path(cli).with_name("fake_claude.py")} "$@"\n')
    program.chmod(0o755)
    env = {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    words = [
        sys.executable,
        "-m",
        "sfactl",
        "run",
        "-q",
        "--name",
        "writer",
        "claude",
        "please fail",
    ]
    subprocess.run(
        words, env=watched.env | env, cwd=tmp_path, capture_output=True, timeout=PATIENCE
    )
    console = Console(watched, env=env)
    context = browser.new_context(viewport=DESK, base_url=console.origin)
    page = context.new_page()
    page.goto(console.link)
    rows = page.locator("[data-run]").filter(has_text="writer")
    expect(rows).to_have_count(1)
    rows.get_by_role("button", name="Continue").click()
    page.get_by_role("dialog").get_by_label("task").fill("go on, and <i>finish</i>")
    page.get_by_role("dialog").get_by_role("button", name="Continue").click()
    expect(rows.filter(has_text="completed")).to_have_count(1)
    rows.filter(has_text="completed").get_by_role("link", name="writer").click()
    expect(page.get_by_role("log")).to_contain_text("heard: go on, and <i>finish</i>")
    page.locator(".facts a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("writer")
    expect(page.get_by_text("continued by")).to_be_visible()
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    context.close()
    console.end()


def test_a_path_is_a_link_that_can_be_sent(
    watched: Daemon, module_console: Console, logged_in: BrowserContext
) -> None:
    run = sleeping(watched, "shared")
    page = logged_in.new_page()
    # a page of another site: the strict cookie does not come along at first
    page.goto("data:text/html,<a href='" + module_console.origin + f"/runs/{run}'>look</a>")
    page.get_by_text("look").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("shared")
    page.close()


def test_a_person_is_notified_while_the_page_is_open(
    watched: Daemon, module_console: Console, logged_in: BrowserContext, page: Page
) -> None:
    logged_in.grant_permissions(["notifications"], origin=module_console.origin)
    run = sleeping(watched, "asks", limit(LimitKind.TURNS, 10, Action.REQUEST_INCREASE))
    page.goto("/")
    expect(page.locator(f'[data-run="{run}"]')).to_contain_text("running")
    page.get_by_label("Menu").click()
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Notifications are on")).to_be_visible()
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    used(watched, run, turns=11)
    shown = (
        "navigator.serviceWorker.ready.then((one) => one.getNotifications()).then((all) "
        "=> all.map((one) => one.title))"
    )
    wait_until(lambda: "asks waits for you" in page.evaluate(shown), "the browser shows it")
    page.evaluate("localStorage.clear()")


def test_the_page_can_be_installed(page: Page, logged_in: BrowserContext) -> None:
    page.goto("/")
    session = logged_in.new_cdp_session(page)
    found = session.send("Page.getAppManifest")
    assert found["errors"] == []
    assert '"display": "standalone"' in found["data"]
    assert session.send("Page.getInstallabilityErrors")["installabilityErrors"] in (
        [],
        [{"errorId": "in-incognito", "errorArguments": []}],
    )


def test_nothing_is_asked_of_another_host(
    watched: Daemon, module_console: Console, page: Page
) -> None:
    run = sleeping(watched, "local")
    used(watched, run, turns=1, cost_usd=0.1)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in ("/", f"/runs/{run}", "/history", "/plans", "/events"):
        page.goto(path)
        expect(page.get_by_role("main")).to_contain_text(re.compile("."))
    assert asked
    assert [url for url in asked if not url.startswith(module_console.origin)] == []
