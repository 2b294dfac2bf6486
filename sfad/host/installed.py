"""The version that is installed in the place of the program that runs."""

from __future__ import annotations

from .. import __version__


def other_version() -> str | None:
    """Return the version of the program that would be executed, if it is another one."""
    from importlib import metadata  # takes a twentieth of a start, and no start needs it

    try:
        found = metadata.version("sfad")
    except metadata.PackageNotFoundError:
        return None
    return found if found != __version__ else None
