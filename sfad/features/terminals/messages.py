"""The request of a person, or a run above, that types into a run's terminal."""

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
