"""Questions to the nodes of the fleet about their runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sfad.protocol import messages as m
from sfad.protocol.types import Limit, LimitKind, Placing, RunInfo
from tests.harness import Daemon, wait_until

Daemons = Mapping[str, Daemon]


def time_limit(seconds: float = 300) -> list[Limit]:
    return [Limit(kind=LimitKind.TIME, threshold=seconds, source="--timeout")]


def on(node: str) -> dict[str, Any]:
    return {"placing": Placing(node=node), "limits": time_limit(), "key": os.urandom(8).hex()}


def nothing_left(fleet: Daemons) -> None:
    def live() -> list[RunInfo]:
        found = []
        for daemon in fleet.values():
            with daemon.client() as client:
                found += [
                    run
                    for run in client.call(m.List(id=0, rows=0), m.RunList).runs
                    if not run.status.terminal
                ]
        return found

    wait_until(lambda: not live(), "no run is live on any node")


def there(fleet: Daemons, run: RunInfo, giver: str = "n1") -> RunInfo:
    """Return a run as the node tells where it executes, once that has it."""
    with fleet[giver].client() as client:
        place = wait_until(
            lambda: (
                (found := client.call(m.Info(id=0, run=run.id), m.RunReply).run.fleet)
                and found.run
                and found
            ),
            "it is taken",
        )
    with fleet[place.node].client() as client:
        return client.call(m.Info(id=0, run=place.run), m.RunReply).run


def live_named(fleet: Daemons, node: str, name: str) -> RunInfo | None:
    with fleet[node].client() as client:
        runs = client.call(m.List(id=0, name=name, rows=0), m.RunList).runs
    return next((run for run in runs if not run.status.terminal), None)


CHANGE = """
pwd; git log --format=%s; git status --porcelain
echo more >> kept.txt; rm gone.txt; mkdir -p new/deep; echo fresh > new/deep/file
chmod +x tool.sh; echo scrap > scrap.log
git add --all; git commit --quiet -m work
"""
"""What a run does in the repository that was sent with it."""
