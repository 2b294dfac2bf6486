"""The command `sfad`."""

import gc

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
    from .cli import app

    app(prog_name="sfad")


if __name__ == "__main__":
    main()
