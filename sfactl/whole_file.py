"""Writes a file whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress


def write_whole(path: str | os.PathLike[str], content: bytes, mode: int | None = None) -> None:
    """Replace a file by one with this content, also if processes write it at the same time. `mode`:
    its permissions (default: as open(2) makes files). Raise `OSError`; then the earlier file is as
    it was, and nothing else is left, as on a full disk."""
    directory, name = os.path.split(os.fspath(path))
    draft = os.path.join(directory, f".{name}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
