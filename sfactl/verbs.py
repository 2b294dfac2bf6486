"""Every verb: where it lives and its line in the help."""

from __future__ import annotations

from importlib import import_module
from typing import Any

VERBS = {
    "run": "Start a run in the foreground: its output, its exit code",
    "spawn": "Start a run and print its id",
    "stop": "Stop runs and everything below them, to the last process",
    "list": "List runs (alias: ps)",
    "summary": "Report how the runs of a night ended, what they cost and why some failed",
    "tree": "Show runs as a tree",
    "info": "Show everything about runs",
    "why": "Say in a sentence what ended, refused or bounds a run",
    "logs": "Print a run's output as it was written; -f follows",
    "result": "Print a finished run's output, made safe for a language model",
    "send": "Write to the stdin of a run started with --stdin",
    "wait": "Wait for runs to end",
    "pause": "Freeze runs with everything below them, and stop their clocks",
    "resume": "Thaw paused runs, with more room if a limit paused them",
    "limit": "Change the limits of live runs, up or down",
    "approve": "Grant a run the increase it waits for, and let it go on",
    "deny": "Refuse a run the increase it waits for, and stop it",
    "report": "Tell what a run has used: turns, messages, tokens, cost",
    "reserve": "Ask whether a run may make a call to a model, and hold what it may cost",
    "settle": "Replace a reservation by what was used",
    "agents": "List the agents that `run NAME` starts, or explain one",
    "recommend": "Suggest limits from past successful runs",
    "prune": "Remove runs that have ended, with their output",
    "reload": "Make the daemon read its config, and show what changed",
    "status": "Show the daemon",
    "doctor": "Check what sfad needs of this machine, and say how to fix it",
    "config": "Show each effective setting and where it comes from, or the schema of --limits",
    "completion": "Print a shell's completion script",
    "help": "Show this list, or explain a verb",
    "demo": "Watch the daemon refuse, bound and stop runs (15 seconds, leaves nothing)",
}

ALIASES = {"ps": "list"}


def load(verb: str) -> Any:
    """The module of a verb. It has `PARAMETERS` and `main(**values) -> exit code`."""
    return import_module(f"sfactl.commands.{verb}")
