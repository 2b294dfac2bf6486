"""The terminal of a run on its page: a person looks, types, leaves and comes back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from sfad.protocol import messages as m
from sfad.protocol.types import Terminal
from tests.features.terminals.person import Person
from tests.features.terminals.test_screen import HOSTILE
from tests.features.terminals.test_terminals import TALK
from tests.harness import PYTHON, Daemon, started, wait_until
from tests.web.console import Console

from .conftest import DESK, TELEPHONE

pytestmark = pytest.mark.needs("chromium")

SIZES = 'stty -echo; echo ready; while read -r x; do echo "got [$x] $(stty size)"; done'


def in_terminal(daemon: Daemon, *words: str, rows: int = 24, columns: int = 80) -> str:
    with daemon.client() as client:
        return started(client, words, terminal=Terminal(rows=rows, columns=columns)).id


def screen(page: Page) -> list[str]:
    """Return the lines of the screen."""
    lines: list[str] = page.locator(".xterm-rows > div").all_text_contents()
    return [line.replace("\xa0", " ").rstrip() for line in lines]


def sees(page: Page, words: str) -> str:
    """Wait until the screen has these words. Return its text."""

    def text() -> str:
        found = "\n".join(screen(page))
        page.wait_for_timeout(20)  # lets the page work: it does so only while it is waited for
        return found if words in found else ""

    return str(wait_until(text, f"the page shows {words}"))


def size(page: Page) -> tuple[int, int]:
    """Return columns and rows, as the page tells them."""
    told = page.locator("#terminal-size")
    expect(told).to_have_text(re.compile(r"\d+ × \d+"))
    columns, rows = told.inner_text().split(" × ")
    return int(columns), int(rows)


def typing(page: Page) -> Locator:
    page.get_by_role("button", name="Type", exact=True).click()
    leave = page.get_by_role("button", name="Stop typing")
    expect(leave).to_be_visible()
    return leave


@pytest.mark.parametrize("device", ["desk", "telephone"])
def test_a_person_types_resizes_leaves_and_comes_back(
    watched: Daemon,
    module_console: Console,
    logged_in: BrowserContext,
    browser: Browser,
    device: str,
) -> None:
    run = in_terminal(watched, "bash", "-c", SIZES)
    touch = device == "telephone"
    view = TELEPHONE if touch else DESK
    context = browser.new_context(
        viewport=view, base_url=module_console.origin, has_touch=touch, is_mobile=touch,
        storage_state=logged_in.storage_state(),
    )  # fmt: skip
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda line: wrong.append(line.text) if "Policy" in line.text else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"/runs/{run}")
    sees(page, "ready")
    assert size(page) == (80, 24)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # nothing is typed by a page that only looks, and its size is not that of the terminal
    page.locator(".run-terminal").click()
    page.keyboard.type("unseen")
    leave = typing(page)
    wait_until(lambda: size(page) != (80, 24), "the terminal has the size of the page")
    columns, rows = size(page)
    assert columns < 60 if touch else columns > 100
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    assert "unseen" not in sees(page, f"got [hello] {rows} {columns}")
    page.set_viewport_size({"width": view["width"] + 100, "height": view["height"]})
    wait_until(lambda: size(page)[0] > columns, "it is as wide as the window")
    page.keyboard.type("wide\n")
    sees(page, f"got [wide] {size(page)[1]} {size(page)[0]}")
    # keys that a telephone lacks
    page.keyboard.type("wrong")
    page.get_by_role("button", name="Ctrl").click()
    page.keyboard.type("u")
    page.keyboard.type("right")
    page.get_by_role("button", name="Enter").click()
    assert "wrong" not in sees(page, "got [right]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # by the key that leaves, as in a terminal
    page.keyboard.press("Control+]")
    expect(leave).to_have_count(0)
    page.keyboard.type("unseen")
    if touch:
        assert Axe().run(page).response["violations"] == []
    page.goto("/")
    with watched.client() as client:
        assert client.call(m.Info(id=0, run=run), m.RunReply).run.status.value == "running"
    page.goto(f"/runs/{run}")
    text = sees(page, "got [right]")
    assert "unseen" not in text
    typing(page)
    page.keyboard.type("again\n")
    sees(page, "got [again]")
    assert wrong == []
    context.close()
    assert watched.sfactl("stop", run).returncode == 0


def test_two_viewers_see_the_same(watched: Daemon, logged_in: BrowserContext, page: Page) -> None:
    run = in_terminal(watched, "bash", "-c", TALK, rows=20, columns=70)
    other = logged_in.new_page()
    for each in (page, other):
        each.goto(f"/runs/{run}")
        sees(each, "ready 20 70")
    with Person(watched, "attach", run, rows=20, columns=70) as person:
        person.type("from a terminal\r")
        for each in (page, other):
            sees(each, "got [from a terminal]")
        typing(other)
        other.keyboard.type("from a page\n")
        sees(page, "got [from a page]")
        person.sees("got [from a page]")
        wait_until(lambda: size(page) == size(other), "both have its size")
        wait_until(lambda: screen(page) == screen(other), "both show the same")
        person.type("\x1d")
        assert person.leaves() == 0
    other.close()
    watched.sfactl("send", run, "--keys", "<C-d>")
    expect(page.get_by_role("button", name="Type", exact=True)).to_have_count(0)
    sees(page, "got [from a page]")  # the last screen stays


def test_what_has_left_the_screen_is_above_it(watched: Daemon, page: Page) -> None:
    run = in_terminal(
        watched,
        "sh",
        "-c",
        r"seq -f 'line %g' 200; printf '\033[38;2;255;120;40mtrue\033[m\n'; cat",
    )
    page.goto(f"/runs/{run}")
    sees(page, "true")
    colour = "span => getComputedStyle(span).color"
    assert page.get_by_text("true", exact=True).evaluate(colour) == "rgb(255, 120, 40)"
    box = page.locator(".xterm-viewport")
    assert box.evaluate("box => box.scrollHeight > 5 * box.clientHeight")
    page.locator(".xterm-screen").hover()
    page.mouse.wheel(0, -100_000)
    sees(page, "line 1\nline 2\n")
    watched.sfactl("stop", run)


NUMBERS = (*range(20), 22, 46, 50, 51, 52, 66, 99, 104, *range(110, 120), 133, 633, 777, 1337)
"""Of commands of the operating system (OSC)."""
SYSTEMATIC = (
    [
        f"\x1b[{prefix}{numbers}{between}{final}".encode()
        for prefix in ("", "?", ">", "<", "=")
        for numbers in ("", "0", "1", "2", "3", "5", "6", "8;50;200", "14", "18", "21", "996")
        for between in ("", "!", '"', "$", "'", "*", "+", " ", "#", "&")
        for final in map(chr, range(0x40, 0x7F))
    ]
    + [
        f"\x1b]{number};{text}{end}".encode()
        for number in NUMBERS
        for text in (
            "?",
            "c;b3duZWQ=",
            "c;?",
            "owned",
            "0;?",
            ";http://evil.example/",
            "File=inline=1:AA",
        )
        for end in ("\x07", "\x1b\\")
    ]
    + [
        f"\x1b{kind}{text}\x1b\\".encode()
        for kind in "P_^X"
        for text in (
            "$qm",
            "+q544e",
            "q#0;2;0;0;0~",
            "Ga=q,i=1;AAAA",
            "0;1|17/owned",
            "owned",
            "1$r0m",
        )
    ]
    + [f"\x1b{final}".encode() for final in map(chr, range(0x30, 0x7F)) if final not in "[]PX^_"]
)
"""Control sequences of each form (ECMA-48), whether a terminal knows them or not."""

HOSTILE_PROGRAM = """
import json, os, sys, tty, select
tty.setraw(0)
print("ready", end="", flush=True)
os.read(0, 1)
for each in json.load(open(sys.argv[1])):
    os.write(1, bytes.fromhex(each))
os.write(1, b"\\x1bc\\x1b[2J\\x1b[Hover")
while True:
    os.read(0, 100)
"""


@pytest.mark.parametrize("types", [False, True])
def test_what_a_hostile_program_prints_stays_on_its_screen(
    watched: Daemon, logged_in: BrowserContext, module_console: Console, page: Page,
    tmp_path: Path, types: bool,
) -> None:  # fmt: skip
    logged_in.grant_permissions(["clipboard-read", "clipboard-write"], origin=module_console.origin)
    listed = tmp_path / "sequences"
    listed.write_text(json.dumps([each.hex() for each in HOSTILE + SYSTEMATIC]))
    run = in_terminal(watched, PYTHON, "-c", HOSTILE_PROGRAM, str(listed))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    page.on("dialog", lambda dialog: asked.append(f"dialog {dialog.message}"))
    page.goto(f"/runs/{run}")
    sees(page, "ready")
    page.evaluate("navigator.clipboard.writeText('mine')")
    if types:
        typing(page)
        wait_until(lambda: size(page) != (80, 24), "it has the size of the page")
        sees(page, "ready")
    outside = """() => {
        const copy = document.documentElement.cloneNode(true);
        // what is told of the run grows
        const grows = ".run-terminal, .numbers, .plots, .events, .facts, .limits";
        for (const each of copy.querySelectorAll(grows)) each.remove();
        return copy.innerHTML + location.href + document.title + history.length + scrollY;
    }"""
    expect(page.locator(".facts")).to_contain_text("command")
    before, pages, sides = page.evaluate(outside), len(logged_in.pages), size(page)
    asked.clear()
    assert watched.sfactl("send", run, "--keys", "x").returncode == 0
    sees(page, "over")
    assert page.evaluate("navigator.clipboard.readText()") == "mine"
    assert page.locator(".run-terminal :is(a, img, iframe, canvas)").count() == 0
    assert page.evaluate(outside) == before
    assert len(logged_in.pages) == pages
    assert size(page) == sides
    assert [
        each for each in asked if not each.startswith(f"GET {module_console.origin}/api/")
    ] == []
    assert watched.sfactl("stop", run).returncode == 0
