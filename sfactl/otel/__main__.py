"""`python -m sfactl.otel SOCKET`, as the daemon starts it. It ends when the daemon does: its stdin
is a pipe from there."""

import os
import sys
import threading

from ..exits import Quit
from ..output import note
from .starting import start


def _end_with_daemon() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)  # nothing is lost: the next exporter begins after the last end that was exported


if __name__ == "__main__":
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    try:
        start(sys.argv[1])
    except Quit as quit_:
        note(quit_.message)
        sys.exit(quit_.code)
