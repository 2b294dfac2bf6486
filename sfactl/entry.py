"""What the programs of this package end with: errors as exit codes."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from .exits import ExitCode, Quit, ReaderGone
from .output import plain

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def leave(code: int) -> NoReturn:
    """End this process. The interpreter would first look for garbage among all that was imported,
    which takes a fifth of a command line."""
    gc.freeze()
    sys.exit(code)


class _EndedBySignal(BaseException):
    """A signal is to end this process; its temporary files are removed first."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
    raise _EndedBySignal(number)


def guarded(work: Callable[[], int]) -> int:
    """Return the exit code of `work`, or that of the error which it raises, printed on stderr. End
    by SIGINT, SIGTERM and SIGHUP as by an error, so that nothing temporary is left."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, _end),
        (signal.SIGHUP, _end),
    ):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, handler)
    try:
        return work()
    except Quit as quit_:
        if quit_.message:
            # the words of a user or an agent must not steer the terminal
            shown = "\n".join(map(plain, quit_.message.split("\n")))
            print(f"sfactl: {shown}", file=sys.stderr)
        return quit_.code
    except UnicodeEncodeError as error:
        # argv, environment and paths of a run travel as bytes; names, ids and labels are text
        print(
            (
                f"sfactl: {error.object!a}: "
                "only the command, --env and --cwd may hold bytes that are not UTF-8"
            ),
            file=sys.stderr,
        )
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except _EndedBySignal as ended:
        os.kill(os.getpid(), ended.number)
        return 128 + ended.number
    except (BrokenPipeError, ReaderGone):
        return _unread()
    except OSError as error:
        _unread()
        # the error of write(2) names no file, and only stdout can have no room for what is written
        # to it here
        where = "stdout: " if error.filename is None and error.errno in _NO_ROOM else ""
        print(f"sfactl: {where}{error}", file=sys.stderr)
        return ExitCode.UNAVAILABLE


def _unread() -> int:
    # The reader of our stdout has gone. The interpreter flushes the buffer at exit, which must not
    # raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141
