"""The declaration."""

from typing import Annotated

from msgspec import Meta, Struct

from ...config_values import SHELL, TEXT
from ...core.state.access import Access
from ...core.state.policy import DURATION
from ...feature import Feature, Section
from ...protocol.types import Checks
from .messages import CheckOutput, ReadCheck

CHECK, SETUP = "check", "setup"
"""What it decides about a run."""

DIRECTORY = "checks"
"""Of the state directory, with what checks have printed."""

MOST, MOST_CHARACTERS = 16, 4096
"""Checks of a run, and characters of a command."""

Commands = Annotated[tuple[str, ...], Meta(max_length=MOST, extra=SHELL)]


class AgentChecks(Struct, frozen=True, kw_only=True):
    check: Commands = ()
    """What each of its runs is checked with."""
    setup: Annotated[str, Meta(max_length=MOST_CHARACTERS, extra=TEXT)] = ""
    """What is executed in a new worktree of a run, before the agent."""


AgentsChecks = dict[str, AgentChecks]
"""By the names of agents."""


class ProfileChecks(Struct, frozen=True, kw_only=True):
    commands: Commands = ()
    timeout: Annotated[float, Meta(ge=1, le=31 * 86400, extra=DURATION)] | None = None


class DefaultChecks(Struct, frozen=True, kw_only=True):
    check: dict[str, ProfileChecks] = {}
    """By types of runs, and `coding-agent`."""


_AS_LOGS = Access(narrowed_by="logs", said="'logs'")

FEATURE = Feature(
    sections=(Section("agents", AgentsChecks), Section("defaults", DefaultChecks)),
    verbs={CheckOutput: _AS_LOGS, ReadCheck: _AS_LOGS},
    decides={CHECK: Checks, SETUP: str},
    variables=("SFA_CHECK",),
    beside=f"/{DIRECTORY}",
    part="part",
)
