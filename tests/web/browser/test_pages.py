"""What the pages show: runs that change, a run, the history, events, budgets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sfad.protocol import messages as m
from sfad.protocol.types import Action, Limit, LimitKind
from tests.harness import PYTHON, Daemon, ended, started

pytestmark = pytest.mark.needs("chromium")


def used(daemon: Daemon, run: str, **amounts: float) -> None:
    with daemon.client() as client:
        client.call(m.Report(id=0, run=run, **amounts), m.RunReply)  # type: ignore[arg-type]


def limit(kind: LimitKind, threshold: float, action: Action = Action.TERMINATE) -> Limit:
    return Limit(kind=kind, threshold=threshold, action=action, source="--limit")


def test_an_empty_console_says_what_to_do(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_text("No run yet.")).to_be_visible()
    expect(page.get_by_text("sfactl run claude")).to_be_visible()
    page.goto("/history")
    expect(page.get_by_text("No run matches.")).to_be_visible()
    page.goto("/events")
    expect(page.get_by_text("No alert is raised.")).to_be_visible()
    page.goto("/runs/zz")
    expect(page.locator("#main")).to_contain_text(re.compile("no run.*zz"))
    expect(page.get_by_role("link", name="What runs now")).to_be_visible()


def test_now_shows_trees_and_what_is_wrong_first(watched: Daemon, page: Page) -> None:
    page.goto("/")
    with watched.client() as client:
        calm = started(
            client,
            ["sleep", "300"],
            name="calm",
            meter="report",
            limits=[limit(LimitKind.TURNS, 10)],
        )
        below = started(client, ["sleep", "300"], name="other")
        stuck = started(
            client,
            ["sleep", "300"],
            name="stuck",
            meter="report",
            limits=[limit(LimitKind.COST, 0.5, Action.REQUEST_INCREASE)],
        )
    used(watched, calm.id, turns=9, cost_usd=0.25)
    row = page.locator(f'[data-run="{calm.id}"]')
    expect(row).to_contain_text("running")  # without loading the page again
    meter = row.get_by_role("meter", name="turns")
    expect(meter).to_have_attribute("aria-valuenow", "9")
    expect(meter).to_have_attribute("aria-valuemax", "10")
    expect(row).to_contain_text("0.25")
    expect(row).to_contain_text("90 %")
    used(watched, stuck.id, cost_usd=0.75)
    rows = page.locator("[data-run]")
    expect(rows.first).to_have_attribute("data-run", stuck.id)
    expect(rows.first).to_contain_text("waits for approval")
    expect(page.get_by_text(re.compile("3 live · 1 waits for you"))).to_be_visible()
    page.get_by_placeholder("Filter").fill("other")
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-run", below.id)
    assert page.url.endswith("?q=other")


def test_children_stand_below_their_parents(watched: Daemon, page: Page, tmp_path: Path) -> None:
    child = tmp_path / "child.sh"
    child.write_text(f'{PYTHON} -m sfactl spawn --name child -- sleep 300 >"$1"\nsleep 300\n')
    told = tmp_path / "id"
    with watched.client() as client:
        parent = started(
            client,
            ["sh", str(child), str(told)],
            name="parent",
            limits=[limit(LimitKind.TIME, 600)],
        )
    page.goto("/")
    expect(page.locator("[data-run]").nth(1)).to_contain_text("child")
    page.get_by_role("link", name="parent").click()
    expect(page.get_by_role("heading", name="Children")).to_be_visible()
    page.locator(".runs").get_by_role("link", name="child").click()
    page.get_by_role("link", name=parent.id).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("parent")


def test_a_run_says_why_it_failed_and_what_it_used(watched: Daemon, page: Page) -> None:
    with watched.client() as client:
        command = ["sh", "-c", "echo a last word >&2; read x; exit 3"]
        run = started(
            client,
            command,
            name="fails",
            meter="report",
            stdin="pipe",
            limits=[limit(LimitKind.COST, 2)],
        )
        page.goto(f"/runs/{run.id}")
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        used(watched, run.id, turns=3, input_tokens=1000, output_tokens=500, cost_usd=0.5)
        expect(page.get_by_role("meter", name="cost")).to_have_attribute(
            "aria-valuetext", re.compile("0.50 of 2.00 USD")
        )
        plot = page.get_by_role("img", name=re.compile("^USD: 0.50 of 2.00"))
        expect(plot.locator("canvas")).to_be_visible()
        page.get_by_label("Stream").select_option("stderr")
        expect(page.get_by_role("log")).to_contain_text("a last word")
        client.call(m.Send(id=0, run=run.id, data=b"go\n"), m.Done)
        ended(client, run.id)
    expect(page.get_by_text(re.compile("ended as failed.*exited with code 3"))).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    timeline = page.locator("[data-seq]")
    expect(timeline.filter(has_text="run failed")).to_have_count(1)
    expect(timeline.filter(has_text="run started")).to_have_count(1)


def test_a_line_says_when_and_does_not_repeat_itself(watched: Daemon, page: Page) -> None:
    with watched.client() as client:
        live = started(client, ["cat"], name="cat", stdin="pipe")
        past = started(client, ["true"], name="true")
        ended(client, past.id)
    clock = re.compile(r"^started \d\d:\d\d:\d\d$")
    page.goto("/")
    why = page.locator(f'[data-run="{live.id}"] .why')
    expect(why).to_have_text(clock)
    expect(why.locator("time")).to_have_attribute("title", re.compile(r"\b20\d\d\b"))
    for address in ("/", "/history"):
        page.goto(address)
        why = page.locator(f'[data-run="{past.id}"] .why')
        expect(why).to_have_text(re.compile(r"^ended \d\d:\d\d:\d\d$"))


def test_a_figure_that_is_unknown_is_not_drawn(watched: Daemon, page: Page) -> None:
    with watched.client() as client:
        run = started(client, ["sleep", "300"], name="priceless", meter="report")
        used(watched, run.id, input_tokens=1000, output_tokens=500)
        page.goto(f"/runs/{run.id}")
        expect(page.get_by_role("img", name=re.compile("^tokens"))).to_be_visible()
        expect(page.get_by_text("Cost, USD")).to_be_hidden()
        client.call(m.Stop(id=0, runs=[run.id], grace=0), m.Stopped)
        priced = started(client, ["sleep", "300"], name="priced", meter="report")
        used(watched, priced.id, cost_usd=1.0)
        client.call(m.Stop(id=0, runs=[priced.id], grace=0), m.Stopped)
    page.goto("/history")
    page.get_by_text("As a table").click()
    expect(page.get_by_role("columnheader", name="priced")).to_be_visible()


def test_the_timeline_is_in_order_although_news_comes_first(watched: Daemon, page: Page) -> None:
    with watched.client() as client:
        run = started(client, ["sleep", "300"], name="ordered")
    one = {"time": 1.0, "severity": "low", "run": run.id, "name": "", "message": "", "state": None}
    told = [
        [one | {"seq": 7, "type": "limit_exceeded"}],
        [one | {"seq": 5, "type": "run_accepted"}, one | {"seq": 6, "type": "run_started"}],
        [one | {"seq": 7, "type": "limit_exceeded"}, one | {"seq": 8, "type": "run_failed"}],
    ]
    body = "".join(f"event: events\ndata: {json.dumps(each)}\n\n" for each in told)
    page.route(
        "**/api/stream?*", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    page.goto(f"/runs/{run.id}")
    lines = page.locator("[data-seq] .type")
    expect(lines).to_have_text(["run accepted", "run started", "limit exceeded", "run failed"])


def test_the_history_has_filters_in_its_address_and_the_cost_of_days(
    watched: Daemon, page: Page
) -> None:
    with watched.client() as client:
        for name, label, cost in (("red", "a", 1.0), ("red", "b", 2.0), ("blue", "a", 4.0)):
            run = started(
                client, ["sleep", "300"], name=name, meter="report", labels={"team": label}
            )
            used(watched, run.id, cost_usd=cost)
            client.call(m.Stop(id=0, runs=[run.id], grace=0), m.Stopped)
    page.goto("/history")
    legend = page.locator(".legend li")
    expect(legend.filter(has_text="blue")).to_contain_text("4.00")
    expect(legend.filter(has_text="red")).to_contain_text("3.00")
    page.get_by_label("by", exact=True).select_option("label")
    expect(legend.filter(has_text="team=a")).to_contain_text("5.00")
    page.get_by_text("As a table").click()
    expect(page.get_by_role("row").last).to_contain_text("2.00")  # today, team=b
    page.get_by_label("name", exact=True).fill("blue")
    page.get_by_label("name", exact=True).press("Enter")
    rows = page.locator("[data-run]")
    expect(rows).to_have_count(1)
    expect(page.locator(".headline")).to_contain_text("4.00 USD")
    sent = page.url
    assert "by=label" in sent
    assert "name=blue" in sent
    page.goto("/")
    page.goto(sent)
    expect(rows).to_have_count(1)
    expect(legend.filter(has_text="team=a")).to_contain_text("4.00")
    assert page.locator('select[name="by"]').input_value() == "label"


def test_older_runs_and_events_are_loaded_on_demand(watched: Daemon, page: Page) -> None:
    with watched.client() as client:
        runs = [started(client, ["true"], name="many").id for _ in range(60)]
        for run in runs:
            ended(client, run)
    page.goto("/history?name=many")
    rows = page.locator("[data-run]")
    expect(rows).to_have_count(50)
    expect(rows.first).to_have_attribute("data-run", runs[-1])
    page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(60)
    page.goto("/events?type=run_*")
    events = page.locator("[data-seq]")
    expect(events.filter(has_text=runs[-1]).first).to_be_visible()
    shown = events.count()
    page.get_by_role("button", name="Older").click()
    expect(events.nth(shown)).to_be_visible()
    numbers = [
        int(each) for each in events.evaluate_all("all => all.map(each => each.dataset.seq)")
    ]
    assert numbers == sorted(set(numbers), reverse=True)


def test_events_come_as_they_happen_and_alerts_stand_above(watched: Daemon, page: Page) -> None:
    page.goto("/events")
    expect(page.get_by_text("No alert is raised.")).to_be_visible()
    with watched.client() as client:
        run = started(
            client,
            ["sleep", "300"],
            name="near",
            meter="report",
            limits=[limit(LimitKind.TURNS, 10)],
        )
    expect(page.locator("[data-seq]").filter(has_text="run started").first).to_contain_text(run.id)
    used(watched, run.id, turns=9)
    expect(page.locator(".alerts")).to_contain_text("used 9 turns")
    page.get_by_label("Severity").select_option("high")
    expect(page.locator("[data-seq]").first).to_contain_text("alert limit")
    assert page.url.endswith("severity=high")


def test_budgets_show_what_is_left(watched: Daemon, page: Page) -> None:
    with watched.client() as client:
        run = started(
            client,
            ["sleep", "300"],
            name="spender",
            meter="report",
            limits=[limit(LimitKind.COST, 100)],
        )
        before = client.call(m.DaemonInfo(id=0), m.DaemonStatus).budgets[0].used_usd
    used(watched, run.id, cost_usd=20)
    page.goto("/plans")
    card = page.locator(".card").filter(has_text="user root")
    expect(card).to_contain_text(f"{before + 20:.2f} of 1000.00 USD")
    expect(card).to_contain_text(f"{980 - before:.2f} USD left; renews")
    expect(card.get_by_role("meter")).to_have_count(1)
    expect(page.locator(".card").filter(has_text="spawns per hour")).to_be_visible()
