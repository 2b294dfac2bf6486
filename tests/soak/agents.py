"""Commands that the soak starts. The labels of each run say what was requested, so that the model
can request the same."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

from sfad.protocol.types import Action, Bound, Limit, LimitKind
from tests.crash.scenario import CALLER, CALLS, fork_away
from tests.crash.victim import Agents
from tests.harness import PYTHON

ROOT = Path(__file__).parents[2]

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")
"""Few, so that some chains are loops."""


def options(random: Random, **more: Any) -> dict[str, Any]:
    """Return the options of a spawn, with labels that say the same."""
    asked: dict[str, Any] = {"name": random.choice(NAMES), "attempts": 1, **more}
    labels: dict[str, str] = {key: str(asked[key]) for key in ("attempts", "queue") if key in asked}
    for key in ("max_depth", "max_descendants"):
        if random.random() < 0.2:
            value = random.randint(1, 4)
            asked[key], labels[key] = Bound(value=value, source="--test"), str(value)
    return {**asked, "labels": labels, "grace": random.choice((0.1, 0.5, 2.0))}


def argument(random: Random, agents: Agents, depth: int) -> tuple[list[str], dict[str, Any]]:
    """Return the command of a random agent with at most `depth` generations below it, and the
    options to start it with."""
    what = random.choice(
        (
            "short",
            "short",
            "long",
            "stubborn",
            "forking",
            "chatty",
            "retrying",
            "metered",
            "calling",
            "nested",
            "nested",
        )
    )
    more: dict[str, Any] = {"queue": False} if random.random() < 0.2 else {}
    if what == "nested" and depth:
        words = [str(depth - 1), str(random.randrange(1 << 30)), str(agents.diary)]
        return [sys.executable, "-m", "tests.soak.nest", *words], options(random, **more)
    seconds = random.choice((0.1, 1, 4))
    if what == "retrying":
        more |= {"attempts": 3, "retry_delay": random.choice((0.0, 0.3))}
    if what == "metered":
        action = random.choice(
            (Action.TERMINATE, Action.PAUSE, Action.REQUEST_INCREASE, Action.WARN)
        )
        more |= {
            "limits": [Limit(kind=LimitKind.TURNS, threshold=4, action=action, source="test")],
            "meter": "jsonl",
        }
    script = {
        "short": f"end {random.choice((0, 0, 0, 1, 7, 70))}",
        "long": f"sleep {10 * seconds}; end 0",
        "stubborn": f"trap '' TERM; sleep {seconds}; sleep {seconds}; end 9",
        "forking": f"{fork_away(60)} {fork_away(60)} sleep {seconds}; end {random.choice((0, 3))}",
        "chatty": (
            "i=0; while [ $i -lt 2000 ]; do echo a line of some length that says nothing $i; "
            "i=$((i+1)); done; end 0"
        ),
        "retrying": (
            f'[ "$SFA_ATTEMPT" = {random.randint(1, 4)} ] && end 0; sleep {seconds / 4}; end 1'
        ),
        "calling": f"{PYTHON} {CALLER} '{json.dumps(CALLS)}' > /dev/null; end 0",
        "metered": "for i in 1 2 3 4 5 6 7; "
        """do echo '{"type": "turn", "tool": "Bash"}'; sleep 0.1; done; end 0""",
    }.get(what, f"sleep {seconds}; end 0")
    return agents.argv(what, script), options(random, **more)


def environment() -> list[bytes]:
    """Return the environment of agents, in which they find this package."""
    kept = {
        key: value for key, value in os.environb.items() if not key.startswith((b"SFA_", b"SFAD_"))
    }
    return [
        key + b"=" + value for key, value in (kept | {b"PYTHONPATH": os.fsencode(ROOT)}).items()
    ]
