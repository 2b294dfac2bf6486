"""Whether the program of a hook can be executed, and whether only its user and root can change
it."""

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...config import Configuration
from .feature import Hooks


def check(config: Configuration) -> list[str]:
    """Return what is wrong with the programs of the config's hooks."""
    return [
        f"hook '{name}': {why}"
        for name, hook in config.section("hooks", Hooks).items()
        if (why := program_trouble(hook.command))
    ]


def program_trouble(command: Sequence[str], path: str | None = None) -> str | None:
    """Return why a command cannot be a hook; `None` if it can. As root, its program must not be
    writable by another user: that user would be root at the next event. `path`: directories to
    search it in."""
    found = shutil.which(command[0], path=path)
    if found is None:
        absent = "/" in command[0] and not os.path.exists(command[0])
        return (
            f"{command[0]} "
            f"{'does not exist' if absent or '/' not in command[0] else 'is not executable'}"
        )
    if os.geteuid() != 0:
        return None
    script = next(
        (word for word in command[1:] if word.startswith("/") and os.path.isfile(word)), None
    )
    for file in filter(None, (found, script)):
        for place in _places(file):
            if (why := _writable_by_others(place)) is not None:
                return f"{place} {why}, and this daemon is root's: chown root and chmod go-w"
    return None


def _places(file: str) -> Iterator[Path]:
    """Yield the file and the directories that lead to it."""
    real = Path(os.path.realpath(file))
    yield real
    yield from real.parents


def _writable_by_others(path: Path) -> str | None:
    try:
        found = path.stat()
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    if found.st_uid != 0:
        return "belongs to another user than root"
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    return "is writable by others" if found.st_mode & 0o022 and not sticky else None
