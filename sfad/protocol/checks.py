"""Checks of runs, as people and agents are told of them (docs/checks.md)."""

from __future__ import annotations

from collections.abc import Iterable

from .texts.units import format_elapsed
from .types import Check, Reason

MOST_SHOWN = 100
"""Characters of a command in a sentence."""


def on_one_line(command: str) -> str:
    """Return a command as it stands in a sentence."""
    words = " ".join("".join(each if each.isprintable() else " " for each in command).split())
    return words if len(words) <= MOST_SHOWN else f"{words[: MOST_SHOWN - 1]}…"


def checked(checks: Iterable[Check]) -> str:
    """Return `checked: make test, 41s; lint, 3.0s`, of the checks that have passed; empty if there
    are none."""
    passed = [
        f"{on_one_line(each.command)}, {format_elapsed(each.elapsed_s or 0.0)}"
        for each in checks
        if each.state == "passed"
    ]
    return f"checked: {'; '.join(passed)}" if passed else ""


def in_words(check: Check) -> str:
    """Return what became of a check: `make test passed in 41s`."""
    command, took = on_one_line(check.command), format_elapsed(check.elapsed_s or 0.0)
    match check.state:
        case "passed":
            return f"{command} passed in {took}"
        case "failed":
            return f"{command} failed after {took}"
        case "running":
            return f"{command} is executed"
    return f"{command} has no result"


def to_repair(reason: Reason) -> str:
    """Return what an agent is told whose work has failed a check."""
    task = f"You ended, and then the check '{on_one_line(reason.command or '')}' failed"
    task += f" after {format_elapsed(reason.elapsed_s or 0.0)}"
    task += f" ({how})." if (how := _how(reason)) else "."
    if reason.lines:
        task += " The last lines of its output:\n\n" + "\n".join(reason.lines) + "\n"
    return task + (
        "\nFind out why, and repair it. Do not change the check itself. "
        "It is executed again when you end."
    )


def _how(reason: Reason) -> str:
    if reason.signal is not None:
        return f"signal {reason.signal}"
    return f"exit code {reason.exit_code}" if reason.exit_code is not None else ""
