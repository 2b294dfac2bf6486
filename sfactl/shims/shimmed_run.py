"""A shim inside a run: the child run that it starts, and how the shim ends as that run ended."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence

from msgspec.structs import replace

from sfad.protocol.types import Rule, RunInfo

from .. import exits, output
from ..connecting import connection
from ..connecting.connection import Unreachable
from ..options import spawn as spawn_options
from ..running.foreground import Foreground
from . import real_program

_BY_ITSELF = ("exit", "signal", "agent", "interrupt")
"""Kinds of reasons for an end that only the program caused."""


def carry_out(program: str, arguments: Sequence[str], *, automatic: bool) -> int:
    """Start the program as a child run with the descriptors of this process, and return its exit
    code. If a signal ended the run, end this process by it. Raise `Quit`."""
    options = spawn_options.SpawnOptions(
        [program, *arguments], name=os.environ.get(real_program.NAME) or None, stdio="inherit"
    )
    message = replace(
        spawn_options.message(options),
        shim=True,
        automatic=automatic,
        env=real_program.unnamed_environment(),
    )
    try:
        client = connection.connect(None)
    except Unreachable as error:
        error.message += (
            f". {program} was not started: inside a run it is started by the daemon "
            "only (sfactl shim list). Do not try again or go around the shim; "
            "go on without it, and tell the person that the daemon does not answer"
        )
        raise
    foreground = Foreground(client, message, options, "raw", silent=True)
    try:
        final = foreground.stay()
    except exits.StartRefused as refused:
        if refused.rule is Rule.LOOP:
            refused.message += (
                f"\n  Through the shim, a name is given as in: {real_program.NAME}=NAME {program} …"
            )
        raise
    except exits.OwnServer as own:
        from .own_server import carry_out as in_child_runs  # few calls are about a server

        return in_child_runs(program, own)
    except exits.NoChildRun as own:
        real_program.become(program, [os.fsdecode(word) for word in own.argv[1:]], below=True)
    return _end(final, foreground.stopped_by)


def _end(final: RunInfo, stopped_by: int | None) -> int:
    """Return the exit code, or end by the signal that ended the run. `stopped_by`: the caller's
    own, which needs no message."""
    if stopped_by is not None:
        return _die(stopped_by)
    if final.reason is not None and final.reason.kind not in _BY_ITSELF:
        if words := output.failure(final):
            output.note(words)
        return exits.of_run(final)
    if final.signal is not None:
        return _die(final.signal)
    return exits.of_run(final) if final.exit_code is None else final.exit_code


def _die(number: int) -> int:
    """End this process by a signal, as its caller expects. Return an exit code if the signal does
    not end it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core that matters is the program's
    try:  # noqa: SIM105 - contextlib would be one more import
        signal.signal(number, signal.SIG_DFL)
    except OSError:
        pass  # SIGKILL has no handler
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return 128 + number
