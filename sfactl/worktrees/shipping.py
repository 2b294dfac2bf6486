"""Directories that are sent with runs to other nodes, and changes that are brought back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from msgspec.structs import replace

from sfad.features.fleet.files import packing as shipping
from sfad.features.fleet.files.packing import ShippingError
from sfad.features.fleet.messages import (
    PIECE,
    FetchFiles,
    FilesKept,
    FilesPacked,
    FilesPart,
    GetFiles,
    PutFiles,
)
from sfad.protocol.requests.starting import Spawn

from .. import output
from ..connecting.connection import Client
from ..exits import ExitCode, Quit, UsageError
from ..features import has

# ---- `spawn --ship`


def sent(message: Spawn, client: Client) -> Spawn:
    """Send the directory of a message to the daemon, and return the message with what the daemon
    needs to know. Raise `Quit`."""
    ship = message.ship
    if ship is None:
        return message
    root = os.fsdecode(ship.directory)
    try:
        found = shipping.survey(root, os.environ, _led(root))
        upload = _Upload(client, os.urandom(16).hex(), found.size)
        upload.ask()  # before anything is packed: it may be too large
        shipping.pack(root, found.paths, upload)  # type: ignore[arg-type]
        upload.end()
    except (ShippingError, OSError) as error:
        raise UsageError(f"--ship {root}: {_words(error)}") from None
    if found.left_out and not message.quiet:
        _tell_left_out("not sent", found.left_out)
    return replace(
        message,
        ship=replace(
            ship, archive=upload.name, size=found.size, git=found.git, author=found.author
        ),
    )


def _led(root: str) -> Mapping[str, str] | None:
    """Return variables with which git obeys no file that an isolated run has left around a
    directory; `None` if there is none. Raise `OSError`."""
    if not has("worktrees"):
        return None
    from .landing import led

    return led(root)


class _Upload:
    """A file that is written to the daemon."""

    def __init__(self, client: Client, name: str, size: int) -> None:
        self.name = name
        self._client = client
        self._size = size
        self._offset = 0
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        self._waiting += data
        while len(self._waiting) >= PIECE:
            self.ask(bytes(self._waiting[:PIECE]))
            del self._waiting[:PIECE]
        return len(data)

    def flush(self) -> None:
        """Do nothing: pieces go when they are full, and the rest at the end."""

    def end(self) -> None:
        self.ask(bytes(self._waiting), last=True)

    def ask(self, data: bytes = b"", *, last: bool = False) -> None:
        request = PutFiles(
            id=0, archive=self.name, size=self._size, offset=self._offset, data=data, last=last
        )
        kept = self._client.call(request, FilesKept)
        self._offset += len(data)
        if (kept.offset, kept.whole) != (self._offset, last):
            raise Quit(
                ExitCode.LOST,
                f"the daemon has {kept.offset} of {self._offset} bytes that were sent; start again",
            )


def _words(error: ShippingError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror is not None:
        return (
            f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
        )
    return str(error)


SHOWN = 10


def _tell_left_out(what: str, left_out: list[str]) -> None:
    for each in left_out[:SHOWN]:
        output.note(f"sfactl: {what}: {output.plain(each)}")
    if len(left_out) > SHOWN:
        output.note(f"sfactl: {what}: {len(left_out) - SHOWN} more")


# ---- `fetch`


def fetched(client: Client, run: str, *, patch: bool) -> tuple[FilesPacked, IO[bytes]]:
    """Return what the daemon tells of the changes of a run, and an archive of them."""
    packed = client.call(FetchFiles(id=0, run=run, patch=patch), FilesPacked)
    archive = tempfile.TemporaryFile(prefix="sfactl-fetch-")  # noqa: SIM115 - the caller closes it
    offset = 0
    while offset < packed.size:
        part = client.call(GetFiles(id=0, run=run, name=packed.name, offset=offset), FilesPart)
        if not part.data:
            raise Quit(
                ExitCode.LOST,
                f"the archive of changes ended after {offset} of {packed.size} bytes; fetch again",
            )
        archive.write(part.data)
        offset += len(part.data)
    return packed, archive


def show_patch(archive: IO[bytes]) -> None:
    """Print changes as a patch. Raise `Quit`."""
    try:
        found = shipping.read_changes(archive)
        output.write(shipping.patch(archive, os.environ))
    except (ShippingError, OSError) as error:
        raise Quit(ExitCode.REFUSED, f"the changes cannot be shown: {_words(error)}") from None
    _tell_left_out("not in the patch", list(found.left_out))


def bring_back(archive: IO[bytes], root: str, *, force: bool, elsewhere: bool) -> dict[str, Any]:
    """Bring changes into a directory, and return what was done. `elsewhere`: it is another
    directory than the files came from, so that files may be missing there. Raise `Quit`."""
    try:
        found = shipping.read_changes(archive)
        with shipping.Tree(root) as tree:
            wrong = [] if force else shipping.conflicts(found, tree, may_miss=elsewhere)
            if wrong:
                raise Quit(ExitCode.REFUSED, _changed_since(root, wrong))
            done = shipping.apply(archive, found, tree)
    except (ShippingError, OSError) as error:
        raise Quit(
            ExitCode.REFUSED, f"the changes cannot be brought to {root}: {_words(error)}"
        ) from None
    shown = {
        kind: [output.utf8(each.path) for each in done if each.kind == kind]
        for kind in ("added", "changed", "deleted")
    }
    return {**shown, "left_out": list(map(output.utf8, found.left_out))}


def _changed_since(root: str, wrong: list[str]) -> str:
    named = ", ".join(map(output.plain, wrong[:SHOWN])) + (
        f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    )
    return (
        f"changed in {root} since it was sent: {named}; nothing was brought back. "
        "--force overwrites them, --to DIR brings the changes elsewhere, and --patch shows them"
    )


def tell(done: dict[str, Any]) -> None:
    """Print what was brought back."""
    for kind in ("added", "changed", "deleted"):
        for path in done[kind]:
            print(f"{kind} {output.plain(path)}")
    if not any(done[kind] for kind in ("added", "changed", "deleted")):
        output.note("sfactl: nothing to bring back")
    _tell_left_out("not brought back", done["left_out"])
