"""`sfactl web` with 1000 live runs, 50 of which write and report, and 100 000 in the history: first
paint, changes, memory, and what it costs the daemon."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import psutil

from sfad.protocol import messages as m
from tests.bench.ours import Sfad, directory
from tests.bench.top import EVERY, RUNS, SECONDS, WRITING, reporting, share
from tests.harness import Daemon, started
from tests.web.console import Console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HISTORY = 100_000
CHANGES = 30
MINUTES = 3
"""Of the memory: with 1000 runs that report it is as an hour with 50 as many changes apart."""


def main() -> None:
    with directory() as place, closing(Sfad(place)) as peer:
        peer.start(())
        peer.remember(HISTORY)
        daemon = peer.daemon
        with daemon.client() as client:
            writing = ["sh", "-c", f"while :; do echo a line of output; sleep {EVERY}; done"]
            for _ in range(RUNS - WRITING):
                started(client, ["sleep", "3000"], name="idle", log=False)
            writers = [
                started(client, writing, name="writer", meter="report").id for _ in range(WRITING)
            ]
        with reporting(daemon, writers), _browser() as browser:
            alone = share(daemon, SECONDS)
            console = Console(daemon)
            try:
                _measure(browser, console, daemon, alone)
            finally:
                console.end()


@contextmanager
def _browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # of `make test-all`

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--enable-precise-memory-info"]
        yield playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)


def _measure(browser: Browser, console: Console, daemon: Daemon, alone: float) -> None:
    page = browser.new_page(
        base_url=console.origin, viewport={"width": 1280, "height": 800}, bypass_csp=True
    )
    page.goto(console.link)
    for path, done in (
        ("/", f"document.querySelectorAll('[data-run]').length >= {RUNS}"),
        ("/history", _CHARTED),
    ):
        page.goto("about:blank")
        page.goto(path, wait_until="commit")
        page.wait_for_function(done, timeout=60_000)
        whole = page.evaluate("performance.now()")
        paint = page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? "
            "performance.now()"
        )
        print(
            f"web {path}",
            f"first paint {paint:.0f} ms, everything {whole:.0f} ms",
            sep="  ",
            flush=True,
        )
    page.goto("/")
    page.wait_for_function(f"document.querySelectorAll('[data-run]').length >= {RUNS}")
    taken = sorted(_change(page, daemon) for _ in range(CHANGES))
    figures = (
        f"a change is on the page: median {statistics.median(taken):.0f} ms, "
        f"95 % {taken[int(CHANGES * 0.95)]:.0f}"
    )
    own = psutil.Process(console.process.pid)
    used, began = sum(own.cpu_times()[:2]), time.perf_counter()
    watched = share(daemon, SECONDS)
    busy = (sum(own.cpu_times()[:2]) - used) / (time.perf_counter() - began)
    cost = (
        f"daemon {100 * alone:.1f} % of a CPU without, {100 * watched:.1f} % with it; "
        f"console {100 * busy:.0f} %"
    )
    print("web", f"{figures}, slowest {taken[-1]:.0f}", cost, sep="  ", flush=True)
    first = _heap(page)
    time.sleep(60 * MINUTES)
    heap = (
        f"page {first:.1f} MB, {MINUTES} minutes later {_heap(page):.1f}; "
        f"console {own.memory_info().rss / 1e6:.0f} MB"
    )
    print("web memory", heap, sep="  ", flush=True)


_CHARTED = "document.querySelector('.headline')?.textContent.includes('runs')"


def _change(page: Page, daemon: Daemon) -> float:
    """Return the milliseconds from the request that starts a run until its line is on the page."""
    page.evaluate(_NEXT_LINE)
    began = time.time()
    with daemon.client() as client:
        run = started(client, ["sleep", "3000"], name="new", log=False).id
        shown = float(page.evaluate("window.shown"))
        client.call(m.Stop(id=0, runs=[run], grace=0), m.Stopped)
    return shown - 1000 * began


_NEXT_LINE = """
window.shown = new Promise((done) => {
    const lines = () => [...document.querySelectorAll('[data-run]')].map((one) => one.dataset.run);
    const known = new Set(lines());
    new MutationObserver((_, watch) => {
        if (lines().every((run) => known.has(run))) return;
        watch.disconnect();
        requestAnimationFrame(() => done(Date.now()));
    }).observe(document.querySelector('.runs'), {childList: true});
}); 0"""


def _heap(page: Page) -> float:
    """Return the megabytes of the page's objects."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.detach()
    return float(page.evaluate("performance.memory.usedJSHeapSize")) / 1e6
