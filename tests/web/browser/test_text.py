"""What agents print, and what they are called, is text."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from sfad.protocol import messages as m
from tests.harness import Daemon, started

from .test_actions import sleeping

pytestmark = pytest.mark.needs("chromium")

NASTY = "<img src=x onerror=document.title='owned'>"


def test_markup_is_text_everywhere(watched: Daemon, page: Page) -> None:
    with watched.client() as client:
        run = started(
            client,
            ["sh", "-c", f"echo \"{NASTY}\"; read x; echo '{NASTY}' >&2; exit 1"],
            name="nasty",
            stdin="pipe",
        )
        page.goto("/")
        expect(page.locator(f'[data-run="{run.id}"]').get_by_text("<img src=x")).to_be_visible()
        page.goto(f"/runs/{run.id}")
        expect(page.get_by_role("log").get_by_text(NASTY)).to_be_visible()
        assert page.locator("main img, main script").count() == 0
        client.call(m.Send(id=0, run=run.id, data=b"\n"), m.Done)
    for path in (f"/runs/{run.id}", "/history", "/events"):
        page.goto(path)
        expect(page.get_by_text("nasty").first).to_be_visible()
        assert page.locator("main img, main script").count() == 0
        assert "owned" not in page.title()


def test_colours_are_shown_and_other_escapes_are_left_out(watched: Daemon, page: Page) -> None:
    command = (
        r"printf 'a \033[31mred\033[0m \033[1;32mbold green\033[m \033[38;5;196mbright\033[0m\n';"
        r"printf '\033]0;title\007after the title \033[2J\033[10;10Hnot moved\033(B\n';"
        r"printf '10%%\r20%%\r100%%\n\000\010odd\n'; printf '\033[3'; sleep 0.2; printf "
        r"'6msplit\033[0m end\n'; sleep 300"
    )
    run = sleeping(watched, "colours", command=command)
    page.goto(f"/runs/{run}")
    screen = page.get_by_role("log")
    expect(screen).to_contain_text("split end")
    expect(screen.locator("span.f1", has_text="red")).to_have_count(1)
    expect(screen.locator("span.b.f2")).to_have_text("bold green")
    expect(screen.locator("span.f6")).to_have_text("split")
    lines = screen.locator(".out").all_text_contents()
    assert lines == [
        "a red bold green bright",
        "after the title not moved",
        "100%",
        "\\u0000\\u0008odd",
        "split end",
    ]


def test_marks_of_direction_do_not_leave_their_line(watched: Daemon, page: Page) -> None:
    run = sleeping(
        watched, "turned", command=r"printf '\342\200\256reversed\nstraight\n'; sleep 300"
    )
    page.goto(f"/runs/{run}")
    lines = page.get_by_role("log").locator(".out")
    expect(lines.first).to_have_text("\\u202ereversed")
    assert lines.nth(1).evaluate("line => getComputedStyle(line).unicodeBidi") == "isolate"


def test_a_line_of_ten_megabytes_is_cut_with_a_note(watched: Daemon, page: Page) -> None:
    run = sleeping(
        watched,
        "long",
        command="echo first; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo last; sleep 300",
    )
    page.goto(f"/runs/{run}")
    screen = page.get_by_role("log")
    expect(screen).to_contain_text("last")
    expect(screen).to_contain_text("the rest of this line is not shown here")
    text = screen.inner_text()
    assert len(text) < 20_000
    assert text.count("\n") < 20
