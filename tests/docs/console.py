"""Write the pictures of docs/console.md, of made-up runs in a real browser: `python -m
tests.docs.console`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from sfad.protocol import messages as m
from sfad.protocol.types import Action, Limit, LimitKind, RunId
from tests.harness import Daemon, started, stopped
from tests.web.console import Console

from .pages import DOCS

CONFIG = """
[quotas]
spawns_per_hour = 10000
[limits]
max_turns = 1000
max_time = "8h"
[budgets.users.root]
daily_usd = 40
"""
SIZES = {"desk": {"width": 1280, "height": 620}, "telephone": {"width": 360, "height": 740}}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(Path(directory), config=CONFIG)
        console = None
        try:
            shown = _start(daemon)
            console = Console(daemon)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                _take(browser, console, shown)
                browser.close()
        finally:
            if console is not None:
                console.end()
            with daemon.client() as client:
                stopped(client, everything=True, grace=0)
            daemon.stop()


def _limit(kind: LimitKind, threshold: float, action: Action = Action.TERMINATE) -> Limit:
    return Limit(kind=kind, threshold=threshold, action=action, source="--limit")


def _start(daemon: Daemon) -> RunId:
    """Start runs as of an evening; return the one whose page is shown."""
    lines = (
        r"printf '\033[1mHEAD~1\033[0m\n\033[32m✓\033[0m tests pass\n\033[33m!\033[0m one query "
        r"has no index\n'; sleep 600"
    )
    with daemon.client() as client:

        def run(name: str, limits: list[Limit], command: str = "sleep 600", **use: float) -> RunId:
            one = started(
                client, ["sh", "-c", command], name=name, meter="report", limits=limits
            ).id
            if use:
                client.call(m.Report(id=0, run=one, **use), m.RunReply)  # type: ignore[arg-type]
            return one

        hour = _limit(LimitKind.TIME, 7200)
        for name, cost in (("docs", 1.4), ("nightly-audit", 3.1), ("changelog", 0.6)):
            run(
                name,
                [_limit(LimitKind.COST, 5)],
                "sleep 0.5",
                turns=12,
                input_tokens=90_000,
                output_tokens=8_000,
                cost_usd=cost,
            )
        started(client, ["sh", "-c", "exit 3"], name="lint")
        review = run(
            "review", [hour, _limit(LimitKind.TURNS, 100), _limit(LimitKind.COST, 10)], lines,
            turns=31, input_tokens=380_000, output_tokens=32_000, cost_usd=1.92,
        )  # fmt: skip
        run(
            "triage",
            [hour, _limit(LimitKind.TURNS, 25), _limit(LimitKind.COST, 1)],
            turns=22,
            input_tokens=18_000,
            cost_usd=0.08,
        )
        run(
            "migrate",
            [hour, _limit(LimitKind.TURNS, 200),
             _limit(LimitKind.COST, 5, Action.REQUEST_INCREASE)],
            turns=88, input_tokens=1_200_000, output_tokens=110_000, cost_usd=5.03,
        )  # fmt: skip
    return review


def _take(browser: Browser, console: Console, run: RunId) -> None:
    page = browser.new_page(base_url=console.origin)
    page.goto(console.link)
    for name, path, size, scheme in (
        ("now", "/", "desk", "light"),
        ("telephone", "/", "telephone", "dark"),
        ("run", f"/runs/{run}", "desk", "light"),
        ("history", "/history", "desk", "light"),
    ):
        page.set_viewport_size(SIZES[size])
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(path)
        _settled(page, name)
        page.screenshot(path=DOCS / f"console-{name}.png")
        print(
            f"docs/console-{name}.png",
            (DOCS / f"console-{name}.png").stat().st_size,
            file=sys.stderr,
        )


def _settled(page: Page, name: str) -> None:
    shown = {
        "now": "migrate",
        "telephone": "migrate",
        "run": "one query has no index",
        "history": "nightly-audit",
    }[name]
    expect(page.get_by_role("main")).to_contain_text(shown, timeout=60_000)
    if name in ("run", "history"):
        expect(page.locator("canvas").first).to_be_visible(timeout=60_000)
    page.wait_for_timeout(1500)  # lines that slide and fonts that load have no event


if __name__ == "__main__":
    main()
