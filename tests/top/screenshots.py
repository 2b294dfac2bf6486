"""Write the picture of docs/watching.md, of made-up runs, with the lines that the program draws.

python -m tests.top.screenshots
"""

from __future__ import annotations

import asyncio
import getpass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sfactl.top.app import TopApp
from sfad.protocol import messages as m
from sfad.protocol.types import Action, LimitKind, LimitState, Reason, RunInfo, Status, Usage
from tests.top.test_table import info

DOCS = Path(__file__).parents[2] / "docs"
NOW = datetime(2026, 1, 31, 22, 4, 5, tzinfo=UTC)


class Pictured(TopApp):
    def now(self) -> datetime:
        return NOW


async def main() -> None:
    app = Pictured(None)
    async with app.run_test(size=(100, 20)) as pilot:
        app.take(m.RunList(id=0, runs=runs()))
        await pilot.pause()
        (DOCS / "top.svg").write_text(app.export_screenshot(title="sfactl top"))


def limit(
    kind: LimitKind, used: float, threshold: float, action: Action = Action.TERMINATE
) -> LimitState:
    return LimitState(kind=kind, threshold=threshold, action=action, source="--limit", used=used)


def run(
    number: int, name: str, minutes: float, parent: int | None = None, **fields: object
) -> RunInfo:
    load = {"processes": 3, "memory_bytes": 340 << 20, "cpu_cores": 0.12, "user": getpass.getuser()}
    return info(
        number, parent, name=name, created_at=NOW - timedelta(minutes=minutes), **(load | fields)
    )


def runs() -> list[RunInfo]:
    over = Reason(
        kind="limit",
        message="used 5.03 USD; its cost limit is 5.00 USD",
        limit_kind="cost",
        threshold=5.0,
        used=5.03,
    )
    return [
        run(
            1, "review", 21, processes=7, memory_bytes=812 << 20, cpu_cores=0.41, descendants=2,
            total_cost_usd=1.92, total_tokens=412_000,
            usage=Usage(turns=31, tokens=210_000, cost_usd=1.2),
            limits=[limit(LimitKind.TIME, 1260, 7200), limit(LimitKind.TURNS, 31, 100),
                    limit(LimitKind.COST, 1.92, 10)],
        ),
        run(
            2, "tests", 12, 1, usage=Usage(turns=22, tokens=98_000, cost_usd=0.51),
            limits=[limit(LimitKind.TIME, 720, 1800), limit(LimitKind.TURNS, 22, 25)],
        ),
        run(
            3, "docs", 9, 1, status=Status.COMPLETED, processes=None, memory_bytes=None,
            cpu_cores=None, usage=Usage(elapsed_s=480.0, turns=9, tokens=104_000, cost_usd=0.21),
        ),
        run(
            4, "migrate", 33, status=Status.PAUSED, reason=over, cpu_cores=0.0,
            usage=Usage(turns=88, tokens=1_310_000, cost_usd=5.03),
            limits=[
                limit(LimitKind.TIME, 1900, 7200), limit(LimitKind.TURNS, 88, 200),
                limit(LimitKind.COST, 5.03, 5, Action.PAUSE)
            ],
        ),
        run(
            5, "triage", 2, usage=Usage(turns=4, tokens=18_200, cost_usd=0.08),
            limits=[limit(LimitKind.TIME, 120, 1800), limit(LimitKind.TURNS, 4, 25),
                    limit(LimitKind.COST, 0.08, 1)],
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
