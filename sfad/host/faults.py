"""Ends the process at its n-th effect, for the test that kills the daemon at each of them
(`SFAD_CRASH_AT`). For debugging only.

`SFAD_CRASH_AT=12` is the 12th effect, `SFAD_CRASH_AT=recover+3` the third from the first one called
`recover` on. The count continues after a re-execution.

An effect is what the next daemon could find half done: a command of the core, a change of the
spool, a transaction of the ledger, a step of a launch. Each is counted before and after.
"""

import os
import sys
import threading
from collections.abc import Callable

from ..protocol.texts.units import parse_whole

VARIABLE = "SFAD_CRASH_AT"

STATUS = 86
"""The exit code of a process that is ended here."""

_lock = threading.Lock()
_from, _, _number = (os.environ.get(VARIABLE) or "0").rpartition("+")
try:
    _left = parse_whole(_number, 0)
except ValueError as _error:
    print(f"sfad: {VARIABLE}: {_error}; unset it", file=sys.stderr)
    sys.exit(2)


def carried() -> dict[str, str]:
    """Return variables for the program that this process becomes."""
    return {VARIABLE: f"{_from}+{_left}" if _from else str(_left)} if _left else {}


def _count(what: str) -> None:
    global _left, _from
    with _lock:
        if _from not in ("", what):
            return
        _from = ""
        _left -= 1
        if _left == 0:
            os.write(2, f"ended at effect {os.environ[VARIABLE]}: {what}\n".encode())
            os._exit(STATUS)


crash_point: Callable[[str], object] = _count if _left else id
"""Marks that an effect is about to happen, or has just happened. A run has thirty of them, so it is
a function of C otherwise."""
