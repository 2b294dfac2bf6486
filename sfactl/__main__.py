"""The command `sfactl`."""

import gc
import signal
import sys


def main() -> None:
    # Collections would take a sixth of a call, and hardly anything is garbage before the verb
    # begins, which enables them.
    gc.disable()
    # Until there is something to clean up (`entry.guarded`), Ctrl-C ends the process without a
    # traceback. A background job of a shell script ignores it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sfad.protocol.inherited import repair_process, unblock_signals

    repair_process()
    unblock_signals()
    from .connecting.signals import end_waits
    from .entry import leave

    end_waits()
    leave(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Carry out a command line. Return its exit code; errors are printed on stderr."""
    from .app import carry_out
    from .entry import guarded

    return guarded(lambda: carry_out(arguments))


if __name__ == "__main__":
    main()
