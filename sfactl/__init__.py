"""sfactl: the command-line client of sfad.

    __main__ ─▶ app (typer) ─ values ─▶ commands/VERB ─▶ connecting ─ frames ─▶ sfad

`__main__`     carries a command line out, and turns errors into exit codes
`app`          the typer application: finds the verb, loads its module, and shows help and errors
`verbs`        the verbs, their aliases and their lines in the help
`commands`     one module for each verb
`options`      what a command line says: options, selections of runs, limits, completion
`connecting`   connections to the daemon, which is started if none is running
`running`      a run in the foreground
`showing`      what is shown of runs, in several verbs
`terminals`    terminals of runs, as a person sees them
`output`       JSON, notes, and texts for figures, times and the state of a run
`sessions`     what `sfactl session` and `sfactl mcp` do
`worktrees`    how the work of ended runs lands; directories that are sent with runs
`shim`         stands in for an agent program; outside any run, becomes it
`shims`        how, inside a run
`features`     which features this sfad has
`environment`  defaults and claims from the environment
`reader`       ends what follows when nothing reads the output any more
`entry`        what a program of this package begins and ends with
`whole_file`   writes a file whole or not at all
`exits`        exit codes, and the errors that end the program with one of them
`errors`       the exceptions of the Python clients
`api`          the Python client: `from sfactl import Daemon`
`client`       what an agent in Python tells of itself: reports and reservations
`top`          the full-screen view of runs
`web`          the console, in a browser
`mcp`          the MCP server, and how programs are told of it
`otel`         the exporter of spans

See "Starting fast" in docs/architecture.md. Only `web`, and the trio form in `api`, import trio. Of
sfad, this package imports `sfad.protocol`, its version, and the `messages` of features; `terminals`
also `sfad.features.terminals.screen` and `recorded`; `doctor` also `sfad.host.probe` and
`sfad.features.listed`; `diff`, `land` and `worktrees` `sfad.git`, `sfad.features.worktrees` and
`sfad.features.fleet.files`; `web` `sfad.host.linux.callers` and `sfad.host.systemd`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api.agents import Agent
    from .api.asking import Outcome
    from .api.awaited import TrioDaemon, TrioRun
    from .api.blocking import Daemon
    from .api.runs import Run
    from .api.trio_agents import TrioAgent
    from .errors import (
        AgentStopped,
        DaemonUnreachable,
        LimitReached,
        NotInARun,
        Refused,
        RequestFailed,
        RunFailed,
        SfadError,
        Unanswered,
    )

_PUBLIC = {
    "api.agents": ("Agent",),
    "api.asking": ("Outcome",),
    "api.awaited": ("TrioDaemon", "TrioRun"),
    "api.blocking": ("Daemon",),
    "api.runs": ("Run",),
    "api.trio_agents": ("TrioAgent",),
    "errors": (
        "AgentStopped", "DaemonUnreachable", "LimitReached", "NotInARun", "Refused",
        "RequestFailed", "RunFailed", "SfadError", "Unanswered",
    ),
}  # fmt: skip
"""What this package offers, by its modules. The command needs none of them."""

__all__ = [
    "Agent",
    "AgentStopped",
    "Daemon",
    "DaemonUnreachable",
    "LimitReached",
    "NotInARun",
    "Outcome",
    "Refused",
    "RequestFailed",
    "Run",
    "RunFailed",
    "SfadError",
    "TrioAgent",
    "TrioDaemon",
    "TrioRun",
    "Unanswered",
]


def __getattr__(name: str) -> object:
    for module, names in _PUBLIC.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
