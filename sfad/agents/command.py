"""The command of a run, as it is executed. Bytes of the user's, never in the core."""

from msgspec import Struct


class Command(Struct, omit_defaults=True):
    """It is saved for as long as the run may start again, and not shown: it may hold secrets."""

    argv: list[bytes]
    cwd: bytes
    env: list[bytes]
    umask: int = 0o022
    placeholders: dict[str, str] = {}
    """What was given for those of its agent, which also finds them in its environment."""
    agent_session: str | None = None
    """The session id that is a word of `argv`. Each further attempt gets a new one in its place."""
    resume_argv: list[bytes] = []
    """The command that continues a session, with `{session}` and `{task}`, if its agent has one."""
    continued_session: str | None = None
    """The session of an ended run that it continues."""

    @property
    def size(self) -> int:
        """The bytes that execve(2) counts."""
        words = len(self.argv) + len(self.env)
        return sum(map(len, self.argv)) + sum(map(len, self.env)) + 9 * words
