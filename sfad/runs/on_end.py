"""The command of `--on-end`, as it is saved from its run's admission until it was executed."""

from msgspec import Struct

from ..launch.credentials import Credentials
from ..protocol.types import Isolation

MOST = 4096
"""Characters of the command."""


class OnEnd(Struct, frozen=True, array_like=True):
    command: str
    """For `sh -c`."""
    cwd: bytes
    env: list[bytes]
    uid: int
    user: Credentials | None
    isolation: Isolation | None = None
    """Of the run, and so of the command: it may execute what the run could write."""
