"""What the page of the history asks for: ended runs, and what each day has cost."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from sfad.protocol import messages as m
from tests.harness import Daemon, ended, started
from tests.web.console import Console

FILTERS: dict[str, set[str]] = {
    "": {"shell", "tool", "other"},
    "&type=qa": {"shell"},
    "&channel=nightly": {"tool"},
    "&model=gpt-*": {"tool", "other"},
    "&model=gpt-6&channel=nightly": {"tool"},
    "&type=qa&channel=nightly": set(),
}


def test_list_and_chart_have_the_same_filters(common: Daemon) -> None:
    label = {"history": uuid.uuid4().hex}
    with common.client() as client:
        for name, model, more in (
            ("shell", "claude-opus-9", {"run_type": "qa"}),
            ("tool", "gpt-6", {"channel": "nightly"}),
            ("other", "gpt-6-mini", {}),
        ):
            run = started(client, ["sleep", "300"], name=name, meter="report", labels=label, **more)
            reported = m.Report(id=client.next_id(), run=run.id, model=model, cost_usd=1.0)
            client.call(reported, m.RunReply)
            client.call(m.Stop(id=client.next_id(), runs=[run.id], grace=0), m.Stopped)
            ended(client, run.id)
    console = Console(common)
    try:
        console.open()
        now = time.time()
        days = f"by=name&days={now - 3600:.0f},{now + 3600:.0f}"
        for filters, found in FILTERS.items():
            query = f"label=history={label['history']}{filters}"
            rows = ask(console, f"/api/history?{query}")["rows"]
            assert {row["name"] for row in rows} == found, filters
            costs = ask(console, f"/api/costs?{days}&{query}")
            assert {each["name"] for each in costs["series"]} == found, filters
            assert costs["runs"] == len(found), filters
    finally:
        assert console.end() == 0


def ask(console: Console, path: str) -> Any:
    status, _, body = console.ask(path)
    assert status == 200, body
    return json.loads(body)
