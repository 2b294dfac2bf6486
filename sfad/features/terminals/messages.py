"""The requests of a person, or a run above, that types into a run's terminal, and of a program
that waits for one."""

from ...protocol.requests.base import Request


class Keys(Request, tag="keys"):
    """Type into a run's terminal, or change its size. Answered by `Done`; `wrong_state` if the run
    has no terminal, `unavailable` if its programs do not read what was typed before."""

    run: str
    data: bytes = b""
    """What its keys send, at most 32 KiB. Nothing keeps it."""
    rows: int = 0
    """With `columns`: the size of the terminal from now on; 0 leaves it."""
    columns: int = 0


class TellWaiting(Request, tag="tell_waiting"):
    """Say that the command of a run waits for a person, or does not any more. It needs the
    permission for `report`. Answered by `Done`."""

    run: str | None = None
    """`None`: the one that the peer is in."""
    words: str = ""
    """What it waits for; at most 200 characters are kept."""
    over: bool = False
    """It goes on."""
