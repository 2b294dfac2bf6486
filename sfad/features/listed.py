"""The list of features, in the order in which they take part: what one decides, the next ones
know."""

from importlib import import_module

from ..feature import Feature

NAMES = (
    "advice",  # limits suggested from past runs
    "alerts",  # what an operator is told without asking
    "budgets",  # money of users and teams, over days
    "plans",  # what agents leave of a subscription's windows
    "hooks",  # commands that are started at events and at the ends of runs
    "metrics",  # figures of the daemon for Prometheus
    "otel",  # spans of runs and calls for OpenTelemetry
    "shims",  # stand-ins for agent programs, which start them as child runs
    "terminals",  # of runs, which outlive clients and daemons
    "approvals",  # calls of tools that a person allows or denies, one at a time
    "isolation",  # sandboxes, which show terminals
    "worktrees",  # of git, which sandboxes show
    "session",  # runs that a model starts, in its shell or over MCP
    "gateway",  # what agents' model calls pass through, and other hosts that a run may reach
    "checks",  # commands that have to succeed before a run is completed; what prepares a worktree
    "fleet",  # runs on other machines, and files that are sent with them
    "admitted",  # runs without a process: agents that are functions of a program
)
"""Their folders."""


def _declared(name: str) -> Feature:
    found = import_module(f"{__package__}.{name}.feature").FEATURE
    assert isinstance(found, Feature)
    return found


FEATURES = {name: _declared(name) for name in NAMES}
"""By the names of their folders."""
