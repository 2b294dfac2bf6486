"""The request to continue the session of an ended run."""

from __future__ import annotations

from msgspec.structs import replace

from sfad.protocol.requests.starting import Continuation, Spawn

from . import spawn_options
from .spawn_options import SpawnOptions


def message(
    run: str, task: str | None, options: SpawnOptions | None = None, *, rest: bool = False
) -> Spawn:
    """Return the request. `task`: what its agent is told, if not why it ended and to go on;
    `options`: what is to be different. Raise `Quit`."""
    # the daemon takes the command of the ended run
    options = replace(options or SpawnOptions(), command=["-"])
    spawn_options.check(options)
    asked = spawn_options.message(options)
    # the ended run had this default, or what its command line said
    limits = [limit for limit in asked.limits if limit.source != "SFA_DEFAULTS_TIMEOUT"]
    return replace(
        asked, argv=[], limits=limits, continues=Continuation(run=run, task=task, rest=rest)
    )
