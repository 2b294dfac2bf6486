"""The kinds of hold, one row each: why a run or a model call waits, what ends that, and how people
are told of it.

A kind that is not in this table, as a newer daemon may tell of it, is told by the words of its
hold.
"""

from __future__ import annotations

from msgspec import Struct

from .types import Blocked

Blocks = tuple[Blocked, ...]


class HoldKind(Struct, frozen=True):
    blocks: Blocks
    """What a hold of this kind may block."""
    means: str
    """Why the run waits."""
    ends: str
    """What ends it."""
    label: str = ""
    """What stands behind the status in a table, in brackets, with `{}` where the time that is left
    matters; empty: the status says enough."""
    until: str = " until {}"
    """How `Hold.until` is told, if it is known."""
    told: str = "{words}{until}"
    """How people are told of it: `words` and `command` of the hold, and `until` as above."""
    clock_stops: bool = True
    """Whether the clock of the run stands."""


_START: Blocks = ("start",)
_PAUSE: Blocks = ("processes",)
_BOTH: Blocks = ("start", "processes")
_CALL: Blocks = ("call",)
_SLOT = "{words}; a slot is free when a tree ends{until}"
_AT_THE_LATEST = ", at the latest at {}"
_UNLESS = " (if nothing resumes it, it is ended at {})"

HOLDS: dict[str, HoldKind] = {
    "record": HoldKind(_START, "the ledger is recording it", "the ledger holds its admission"),
    "slot": HoldKind(
        _START, "every slot for trees is taken", "a tree ends",
        until=_AT_THE_LATEST, told=_SLOT,
    ),
    "group": HoldKind(
        _START, "every slot of its group is taken", "a tree of the group ends",
        until=_AT_THE_LATEST, told=_SLOT,
    ),
    "after": HoldKind(_START, "other runs have to end first (`--after`)", "they end"),
    "at": HoldKind(
        _START, "it is to start at a time (`--at`)", "the time comes", "waits{}", told="{words}"
    ),
    "placing": HoldKind(_START, "no node is found for it yet", "a node has room", "is placed"),
    "lease": HoldKind(
        _START, "its node has not taken it yet", "the node answers, or the lease ends",
        "for its node",
    ),
    "stage": HoldKind(
        _START, "its setup, its command or a check is next", "nothing is alive of what was before",
    ),
    "retry": HoldKind(
        _START, "an attempt failed", "the delay before the next attempt is over",
        "next attempt{}", " at {}",
    ),
    "plan": HoldKind(
        _BOTH, "a window of a subscription is used up to what is kept",
        "the window is reset, and it is the run's turn", "plan{}",
        told="{words}; it goes on by itself then ({command})",
    ),
    "budget": HoldKind(
        _PAUSE, "a budget has run out", "the budget is renewed or raised", "budget",
        told="{words} (then: {command})",
    ),
    "approval": HoldKind(
        _PAUSE, "a limit with `request_increase` is exceeded",
        "a person approves or denies, or limits.approval_timeout is over",
        "waits for approval{}",
        told="{words}; it waits for approval{until}: {command}. Unanswered for "
        "limits.approval_timeout, it is terminated",
    ),
    "limit": HoldKind(
        _PAUSE, "a limit with `pause` is exceeded",
        "a person resumes it, or limits.pause_max is over", "limit",
        told="{words}; it continues with: {command}",
    ),
    "person": HoldKind(
        _PAUSE, "a person or another run paused it", "it is resumed, or limits.pause_max is over",
        "by hand", _UNLESS, "{words}{until}; {command} continues it",
    ),
    "suspended": HoldKind(
        _PAUSE, "its foreground client was suspended (Ctrl-Z)",
        "its client continues (fg), or limits.pause_max is over", "suspended", _UNLESS,
        "{words}{until}; it continues with 'fg' there, or with: {command}",
    ),
    "giver": HoldKind(
        _PAUSE, "the node that granted it paused it", "that node resumes it", "by its giver"
    ),
    "node": HoldKind(
        _PAUSE, "it is paused on the node where it executes", "it is resumed there",
        "on its node", told="{words}; it continues with: {command}",
    ),
    "ancestor": HoldKind(
        _BOTH, "a run above it is paused", "that run goes on", "with a run above",
        told="{words} ({command})",
    ),
    "tool": HoldKind(
        _CALL, "its agent asks a person for a call of a tool", "a person allows or denies it",
        "asks for approval", told="asks for approval: {words}: {command}",
    ),
    "call": HoldKind(
        _CALL, "model calls wait for others to end, or for their rate",
        "their turn comes, or gateway.wait is over", "a model call waits",
        told="{words}{until} ({command})", clock_stops=False,
    ),
}  # fmt: skip
"""By `Hold.kind`."""

UNKNOWN = HoldKind((), "", "")
"""For a kind that is not known here."""
