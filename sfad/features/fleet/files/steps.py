"""The programs that unpack the files of a run, and compare them with what was sent. A bare
interpreter executes them as the run's user: one is the first step of each attempt, in the run's own
containment, and becomes the command; the other is a helper.

A copy (`kept`) has:

`archive`     what was sent
`own/files`  the files, as the run changes them: all of them, or not there
`own/new`    what an earlier step had begun to unpack
`own/NAME`   changes that were packed
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Sequence

from ....processes.helper import (
    ANSWER,
    NOT_EXECUTABLE,
    become,
    environment,
    fail,
    python_words,
    understood,
)
from . import packing as shipping

KEPT = 900.0
"""Seconds for which packed changes are kept."""

# ---- The first step of an attempt


def step_words(
    *, copy: str, cwd: bytes, git: bool, author: str, most: int, sealed: bool
) -> list[bytes]:
    """Return the command that `helper.completed` completes."""
    given = {
        "copy": copy, "cwd": os.fsdecode(cwd), "git": "1" if git else "", "author": author,
        "most": str(most), "sealed": "1" if sealed else "",
    }  # fmt: skip
    return [
        *python_words(__name__, "enter"),
        *(os.fsencode(f"{name}={value}") for name, value in given.items()),
    ]


def enter(words: list[str]) -> None:
    """Unpack the files, unless an earlier attempt has, and become the command there. Return only by
    `SystemExit`, after a line on stderr."""
    given, files, argv = understood(words)
    env = environment(sealed=bool(given["sealed"]))
    try:
        if not os.path.isdir(f"{given['copy']}/own/files"):
            _unpack(
                given["copy"], int(given["most"]), given["author"] if given["git"] else None, env
            )
        os.makedirs(given["cwd"], exist_ok=True)  # git keeps no empty directory
        os.chdir(given["cwd"])
    except (shipping.ShippingError, OSError) as error:
        fail(NOT_EXECUTABLE, f"the files that were sent with the run cannot be unpacked: {error}")
    become(files, argv)


def _unpack(copy: str, most: int, author: str | None, env: dict[str, str]) -> None:
    new = f"{copy}/own/new"
    if os.path.lexists(new):
        shutil.rmtree(new)
    os.mkdir(new, 0o700)
    with open(f"{copy}/archive", "rb") as archive:
        shipping.unpack(archive, new, most)
    if author is not None:
        shipping.begin_repository(new, author, env)
    os.rename(new, f"{copy}/own/files")


# ---- What has changed


def pack_words(*, copy: str, name: str, git: bool, most: int, patch: bool) -> list[bytes]:
    """Return the command that packs the changes of a run as `own/NAME`. It prints JSON after
    `ANSWER`: `size` or `error`."""
    words = [copy, name, "1" if git else "", str(most), "1" if patch else ""]
    return [*python_words(__name__, "pack"), *map(os.fsencode, words)]


def pack(words: Sequence[str]) -> None:
    import json

    copy, name, git, most, patch = words
    own = f"{copy}/own"
    found: dict[str, object]
    try:
        _remove_old(own)
        size = _pack(copy, f"{own}/{name}", bool(git), int(most), bool(patch))
        found = {"size": size}
    except (shipping.ShippingError, OSError) as error:
        found = {"error": str(error)}
    os.write(1, b"\n" + ANSWER + json.dumps(found).encode() + b"\n")


def _pack(copy: str, target: str, git: bool, most: int, patch: bool) -> int:
    root = f"{copy}/own/files"
    if not os.path.isdir(root):
        raise shipping.ShippingError("the run has not unpacked its files")
    with open(f"{copy}/archive", "rb") as archive:
        changes = shipping.compare(archive, root, os.environ, git=git)
        archive.seek(0)
        made = os.open(f"{target}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(made, "wb") as out:
            shipping.pack_changes(archive, root, changes, out, most, patch=patch)
    os.rename(f"{target}.new", target)
    return os.path.getsize(target)


def _remove_old(own: str) -> None:
    """Remove what earlier calls have packed."""
    for entry in os.scandir(own):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_mtime < time.time() - KEPT:
            os.unlink(entry.path)
