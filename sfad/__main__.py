"""The command `sfad`."""

import gc
import signal

from .host.headroom import raise_priority
from .host.secrecy import hide_memory
from .protocol.inherited import repair_process

# until start-up is done and its objects are frozen: collections take a sixth of a start
gc.disable()


def main() -> None:
    repair_process()
    # before the imports: the environment may have keys, and the imports take 0.4 s of processor
    # time, which is ten seconds if runs keep all processors busy
    hide_memory()
    raise_priority()
    # what the handler of Ctrl-C raises is lost where msgspec makes a struct
    if interruptible := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import app

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="sfad")


if __name__ == "__main__":
    main()
