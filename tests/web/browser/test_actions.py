"""What a person does on the pages, with the mouse, by keyboard, and on a telephone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from sfad.protocol import messages as m
from sfad.protocol.types import Action, Limit, LimitKind, RunInfo, Status
from tests.e2e.test_worktrees import Repository
from tests.features.approvals.test_approvals import answer, asking
from tests.harness import Daemon, ended, started, wait_until
from tests.web.console import Console

from .conftest import DESK, TELEPHONE
from .test_pages import limit, used

pytestmark = pytest.mark.needs("chromium")


def info(daemon: Daemon, run: str) -> RunInfo:
    with daemon.client() as client:
        return client.call(m.Info(id=0, run=run), m.RunReply).run


def sleeping(
    daemon: Daemon, name: str, *limits: Limit, command: str = "sleep 300", **options: object
) -> str:
    with daemon.client() as client:
        return started(
            client, ["sh", "-c", command], name=name, meter="report", limits=list(limits), **options
        ).id


def test_stop_asks_first(watched: Daemon, page: Page) -> None:
    run = sleeping(watched, "runaway")
    page.goto("/")
    row = page.locator(f'[data-run="{run}"]')
    row.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("runaway")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert info(watched, run).status is Status.RUNNING
    row.get_by_role("button", name="Stop").click()
    dialog.get_by_role("button", name="Stop").click()
    expect(row).to_contain_text("cancelled")
    expect(page.get_by_text(f"{run} is stopped")).to_be_visible()
    assert info(watched, run).status is Status.CANCELLED


@pytest.mark.needs("git")
def test_what_has_landed_is_told_no_more(watched: Daemon, page: Page, tmp_path: Path) -> None:
    repository = Repository(tmp_path, directory="sub")
    for key, value in (("user.name", "n"), ("user.email", "n@example.com")):
        repository.git("config", key, value)
    run = repository.run(watched, "echo two > file").id
    page.goto(f"/runs/{run}")
    work = page.get_by_text(f"1 file changed, not committed: sfactl land {run}")
    expect(work).to_be_visible()
    page.get_by_role("button", name="Land").click()
    page.get_by_role("dialog").get_by_role("button", name="Land").click()
    expect(page.get_by_text(f"{run} landed on 'main'")).to_be_visible()
    expect(work).to_have_count(0)


def test_pause_and_resume(watched: Daemon, page: Page) -> None:
    run = sleeping(watched, "pausing")
    page.goto(f"/runs/{run}")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert info(watched, run).status is Status.PAUSED
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert info(watched, run).status is Status.RUNNING


def test_a_run_that_its_limit_has_paused_resumes_with_twice_as_much(
    watched: Daemon, page: Page
) -> None:
    run = sleeping(watched, "paused", limit(LimitKind.TURNS, 10, Action.PAUSE))
    used(watched, run, turns=11)
    page.goto("/")
    page.locator(f'[data-run="{run}"]').get_by_role("button", name="Resume").click()
    expect(page.get_by_text(re.compile(f"{run} is running: turns 11 of 20"))).to_be_visible()
    [turns] = [state for state in info(watched, run).limits if state.kind is LimitKind.TURNS]
    assert (turns.threshold, turns.action) == (20, Action.PAUSE)
    assert turns.source.startswith("sfactl web by user")


@pytest.mark.parametrize("verb", ["Resume", "Approve"])
@pytest.mark.parametrize(("threshold", "turns", "room"), [(1, 2, 3), (3, 7, 9), (4, 5, 8)])
def test_what_is_counted_gets_a_whole_number(
    watched: Daemon, page: Page, verb: str, threshold: int, turns: int, room: int
) -> None:
    action = Action.PAUSE if verb == "Resume" else Action.REQUEST_INCREASE
    run = sleeping(watched, "counted", limit(LimitKind.TURNS, threshold, action))
    used(watched, run, turns=turns)
    page.goto("/")
    page.locator(f'[data-run="{run}"]').get_by_role("button", name=verb).click()
    expect(page.get_by_text(f"{run} is running: turns {turns} of {room}")).to_be_visible()


def test_stop_counts_what_it_stops(watched: Daemon, page: Page, tmp_path: Path) -> None:
    sfactl = f"{sys.executable} -m sfactl"
    script = tmp_path / "parent.sh"
    script.write_text(f"{sfactl} run true\n{sfactl} spawn -- sleep 300\necho ready\nsleep 300\n")
    run = sleeping(watched, "parent", command=f"sh {script}")
    wait_until(lambda: "ready" in watched.output(run), "its children are there")
    page.goto(f"/runs/{run}")
    page.get_by_role("button", name="Stop").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("and 1 below it")
    page.get_by_role("button", name="Cancel").click()


def test_a_limit_is_raised_and_a_wrong_one_is_refused_in_words(watched: Daemon, page: Page) -> None:
    run = sleeping(watched, "bounded", limit(LimitKind.TURNS, 10))
    page.goto("/")
    page.locator(f'[data-run="{run}"]').get_by_role("button", name="Limit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("turns").fill("many")
    dialog.get_by_role("button", name="Limit").click()
    expect(page.locator(".note.bad")).to_contain_text("many")
    dialog.get_by_label("turns").fill("40")
    dialog.get_by_role("button", name="Limit").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_text(f"{run} is running: turns")).to_be_visible()
    assert [
        state.threshold for state in info(watched, run).limits if state.kind is LimitKind.TURNS
    ] == [40]


def test_approve_never_asks_for_more_than_the_config_allows(watched: Daemon, page: Page) -> None:
    run = sleeping(watched, "asking", limit(LimitKind.TURNS, 80, Action.REQUEST_INCREASE))
    used(watched, run, turns=81)
    page.goto("/")
    page.locator(f'[data-run="{run}"]').get_by_role("button", name="Approve").click()
    expect(page.get_by_text(f"{run} is running: turns 81 of 100")).to_be_visible()


def test_deny_asks_and_stops(watched: Daemon, page: Page) -> None:
    run = sleeping(watched, "asking", limit(LimitKind.TURNS, 10, Action.REQUEST_INCREASE))
    used(watched, run, turns=11)
    page.goto(f"/runs/{run}")
    page.get_by_role("button", name="Deny").click()
    page.get_by_role("dialog").get_by_role("button", name="Deny").click()
    with watched.client() as client:
        assert "denied" in str(ended(client, run).reason)
    expect(page.get_by_role("button", name="Deny")).to_have_count(0)


def test_a_call_of_a_tool_is_shown_and_answered(watched: Daemon, page: Page) -> None:
    allowed, denied = asking(watched), asking(watched)
    page.goto("/")
    page.locator(f'[data-run="{allowed}"]').get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text('Bash {"command": "make"')
    dialog.get_by_role("button", name="Approve").click()
    expect(page.get_by_text(f"call-1 of {allowed} is allowed")).to_be_visible()
    assert answer(watched, allowed)["behavior"] == "allow"
    page.goto(f"/runs/{denied}")
    page.get_by_role("button", name="Deny").click()
    expect(dialog).to_contain_text("What the agent is told")
    dialog.get_by_label("message").fill("use the tests")
    dialog.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("button", name="Deny")).to_have_count(0)
    assert answer(watched, denied) == {"behavior": "deny", "message": "use the tests"}
    assert info(watched, denied).status is Status.RUNNING


def test_a_message_reaches_stdin(watched: Daemon, page: Page) -> None:
    run = sleeping(
        watched,
        "listening",
        command="read line; echo heard: $line; read line; echo and: $line; sleep 300",
        stdin="pipe",
    )
    page.goto(f"/runs/{run}")
    page.get_by_label("message").fill("look at <b>this</b>")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("log")).to_contain_text("heard: look at <b>this</b>")
    page.goto("/")
    page.locator(f'[data-run="{run}"]').get_by_role("button", name="Send").click()
    page.get_by_role("dialog").get_by_label("message").fill("that")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    page.goto(f"/runs/{run}")
    expect(page.get_by_role("log")).to_contain_text("and: that")


def test_a_registered_agent_is_started(page: Page) -> None:
    page.goto("/")
    page.get_by_role("button", name="Start", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("agent").select_option("greeter")
    dialog.get_by_label("task").fill("the world")
    dialog.get_by_label("name").fill("begun-here")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog).to_have_count(0)
    row = page.locator("[data-run]").filter(has_text="begun-here")
    expect(row).to_contain_text("running")
    row.get_by_role("link", name="begun-here").click()
    expect(page.get_by_role("log")).to_contain_text("hello the world")


def test_an_action_is_a_post_with_the_token_of_the_page(
    watched: Daemon, module_console: Console, page: Page
) -> None:
    run = sleeping(watched, "kept")
    page.goto("/")
    for headers in ({}, {"x-csrf-token": "guess"}):
        answer = page.request.post(f"/api/runs/{run}/stop", headers=headers, data="{}")
        assert answer.status == 403
    token = page.evaluate("document.body.dataset.token")
    for wrong in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
        assert (
            page.request.post(
                f"{module_console.origin}/api/runs/{run}/stop",
                headers={"x-csrf-token": token} | wrong,
            ).status
            == 403
        )
    assert page.request.get(f"/api/runs/{run}/stop").status == 405
    assert info(watched, run).status is Status.RUNNING
    assert (
        page.request.post(
            f"/api/runs/{run}/stop", headers={"x-csrf-token": token}, data="{}"
        ).status
        == 200
    )
    assert info(watched, run).status is Status.CANCELLED


def test_everything_works_by_keyboard(watched: Daemon, page: Page) -> None:
    runs = [sleeping(watched, f"line-{number}") for number in range(3)]
    page.goto("/")
    for run in runs:
        expect(page.locator(f'[data-run="{run}"]')).to_contain_text("running")
    page.locator("[data-run] a").first.focus()
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("document.activeElement.closest('[data-run]').dataset.run")
    assert focused in runs
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Stop"
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert page.evaluate("document.activeElement.textContent") == "Cancel"  # Enter destroys nothing
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert page.evaluate("document.activeElement.textContent") == "Stop"  # where it was
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    with watched.client() as client:
        assert ended(client, focused).status is Status.CANCELLED
    page.keyboard.press("/")
    wait_until(
        lambda: page.evaluate("document.activeElement.id") == "filter", "the filter has the focus"
    )


def test_a_stranger_with_a_telephone(watched: Daemon, page: Page) -> None:
    """Stop a runaway, raise a limit, approve a request, read why a run failed and what the last day
    cost."""
    runaway = sleeping(watched, "runaway", limit(LimitKind.COST, 50))
    used(watched, runaway, cost_usd=12)
    asking = sleeping(watched, "asking", limit(LimitKind.COST, 1, Action.REQUEST_INCREASE))
    used(watched, asking, cost_usd=1.5)
    bounded = sleeping(watched, "bounded", limit(LimitKind.TURNS, 10))
    with watched.client() as client:
        failed = started(client, ["sh", "-c", "exit 9"], name="broken").id
        ended(client, failed)
    page.set_viewport_size(TELEPHONE)
    page.goto("/")
    expect(page.locator("[data-run]").first).to_contain_text("asking")
    page.locator(f'[data-run="{asking}"]').get_by_role("button", name="Approve").click()
    expect(page.locator(f'[data-run="{asking}"]')).to_contain_text("running")
    page.locator(f'[data-run="{bounded}"]').get_by_role("button", name="Limit").click()
    page.get_by_role("dialog").get_by_label("turns").fill("30")
    page.get_by_role("dialog").get_by_role("button", name="Limit").click()
    wait_until(
        lambda: any(state.threshold == 30 for state in info(watched, bounded).limits),
        "the limit is raised",
    )
    page.locator(f'[data-run="{runaway}"]').get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.locator(f'[data-run="{runaway}"]')).to_contain_text("cancelled")
    page.get_by_role("link", name="broken").first.click()
    expect(page.get_by_text(re.compile("exited with code 9")).first).to_be_visible()
    page.get_by_role("link", name="History").click()
    expect(page.locator(".headline")).to_contain_text("USD")
    expect(page.locator(".legend li").filter(has_text="runaway")).to_contain_text("12.00")


@pytest.mark.parametrize(
    ("size", "scheme"), [(TELEPHONE, "light"), (DESK, "dark")], ids=["telephone", "desk"]
)
def test_axe_finds_nothing_and_no_page_is_wider_than_its_window(
    watched: Daemon, page: Page, size: dict[str, int], scheme: str
) -> None:
    run = sleeping(
        watched,
        "asking-" + "x" * 57,
        limit(LimitKind.COST, 1, Action.REQUEST_INCREASE),
        labels={"a": "b"},
    )
    used(watched, run, turns=3, input_tokens=1000, cost_usd=1.5)
    other = sleeping(
        watched,
        "near",
        limit(LimitKind.TURNS, 10),
        command="printf '\\033[31mred\\033[0m\\n'; sleep 300",
        stdin="pipe",
    )
    used(watched, other, turns=9)
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    for path, shown in (
        ("/", "near"),
        (f"/runs/{other}", "red"),
        ("/history", "near"),
        ("/plans", "left"),
        ("/events", "near"),
    ):
        page.goto(path)
        expect(page.get_by_role("main")).to_contain_text(shown)
        expect(page.get_by_role("main")).not_to_have_attribute("aria-busy", "true")
        if path == "/":
            page.locator(f'[data-run="{other}"]').get_by_role("button", name="Limit").click()
            expect(page.get_by_role("dialog")).to_be_visible()
        found = [
            each
            for each in Axe().run(page).response["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == [], (
            path
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
