"""Agent programs, meters and profiles of limits that are built in."""

from __future__ import annotations

from typing import NamedTuple

from .types import Action

PROGRAMS = ("claude", "codex", "gemini", "opencode")
"""Agent programs whose events a meter reads."""

AGENTS = (*PROGRAMS, "aider")
"""Registered agents that are built in (docs/agents.md)."""

NO_METER = "none"
"""`--meter none`: nothing tells what the run uses."""

BY_REPORT = "report"
"""`--meter report`: the agent reports what it uses (`sfactl report`, `sfactl.client`), and its output is not read."""

METERS = (*PROGRAMS, "jsonl", BY_REPORT, NO_METER)
"""The values of `--meter`. `jsonl`: any program that prints usage as lines of JSON."""

CODING_AGENT = "coding-agent"
"""The profile of a known agent program whose run names none."""


class Profile(NamedTuple):
    """The limits of a `--type`, in the units of their kinds, and the action of each."""

    turns: int
    time: float
    cost: float
    action: Action


PROFILES: dict[str, Profile] = {
    "developer": Profile(25, 600, 1.00, Action.TERMINATE),
    "qa": Profile(10, 120, 0.50, Action.TERMINATE),
    "planner": Profile(15, 300, 2.00, Action.TERMINATE),
    "architect": Profile(50, 1800, 5.00, Action.WARN),
    "researcher": Profile(50, 1200, 5.00, Action.WARN),
    "security-architect": Profile(30, 900, 3.00, Action.TERMINATE),
    "code-reviewer": Profile(20, 600, 1.50, Action.WARN),
    "devops": Profile(30, 900, 2.00, Action.TERMINATE),
    CODING_AGENT: Profile(100, 1800, 5.00, Action.TERMINATE),
}
"""Documented in docs/limits.md. Any other word is a type without a profile."""
