"""Files that are sent with a run to another node, and brought back."""

from __future__ import annotations

from .base import Reply, Request

PIECE = 1 << 20
"""Bytes of an archive in one message."""


class PutFiles(Request, tag="put_files"):
    """Bring a piece of an archive, a gzipped tar, that a later `Spawn` names in `ship`. Needs the
    permission for `spawn`. Answered by `FilesKept`, which says where the next piece begins: without
    `data`, it only asks.

    The daemon removes an archive that no run has named for an hour."""

    repeats = 3

    archive: str
    """32 hexadecimal digits that the client has drawn."""
    size: int
    """Bytes of all files before they are packed; at most `fleet.ship_max`."""
    offset: int = 0
    """Where the piece belongs. If that is not where the next one is expected, nothing is kept of
    it."""
    data: bytes = b""
    """At most 1 MiB."""
    last: bool = False
    """The archive ends with this piece."""


class FilesKept(Reply, tag="files_kept"):
    offset: int
    """Bytes that the daemon has."""
    whole: bool = False
    """It has the last piece."""


class FetchFiles(Request, tag="fetch_files"):
    """Compare the files of a run with what was sent (`ship`), and pack what has changed, on the
    node where the run executes. Needs the permission for `logs`, and the run's own user. Answered
    by `FilesPacked`; `wrong_state` if the run has no such files."""

    repeats = 1

    run: str
    patch: bool = False
    """Pack the changed files as they were sent, too."""


class FilesPacked(Reply, tag="files_packed"):
    name: str
    """For `get_files`. The daemon keeps the archive for 15 minutes."""
    size: int
    directory: bytes
    """Where the files came from,"""
    node: str
    """and on which node."""
    asked: str = ""
    """The node whose daemon answers this client."""


class GetFiles(Request, tag="get_files"):
    """Read a piece of what `fetch_files` has packed. Needs what that needs. Answered by
    `FilesPart`."""

    repeats = 1

    run: str
    name: str
    offset: int = 0


class FilesPart(Reply, tag="files_part"):
    data: bytes
    """At most 1 MiB; empty at the end."""
