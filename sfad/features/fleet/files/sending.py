"""Files that are sent with runs: archives that clients and other nodes bring, the copy in which a
run works, and what it has changed there. What reads files of a run is executed as the run's
user."""

import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec
import trio
from msgspec import Struct, field

from ....durable.maintenance import Old
from ....git.commands import LOCAL
from ....host.tasks import in_thread
from ....processes.contained_commands import ContainedCommand, ContainedCommands
from ....processes.credentials import Credentials
from ....processes.helper import ANSWER
from ....protocol.messages import Error
from ....protocol.requests.base import Reply, Request
from ....protocol.types import ErrorCode, RunId, Ship
from ....runs.live import Live
from ..feature import SHIP
from ..messages import FilesKept, PutFiles
from .kept import Shipment, ShippedFiles, ShipRefused, name_of
from .steps import pack_words, step_words

PACK_SECONDS = 300.0
"""Seconds that it may take to compare the files of a run and to pack what has changed."""
NOT_HERE = "the files of {} are not here any more: start the run again"
Ask = Callable[[Request], Awaitable[Reply]]
_LOCAL = tuple(f"{name}=".encode() for name in LOCAL)


class _Packed(Struct):
    size: int = 0
    error: str | None = None


class Shipping(Struct):
    files: ShippedFiles
    processes: ContainedCommands
    live: Mapping[RunId, Live]
    _turns: dict[int, trio.Lock] = field(default_factory=dict)
    """Of each user, one piece or helper at a time."""

    def named(self) -> frozenset[str]:
        """Return the copies that live runs name."""
        return frozenset(
            name_of(each.uid, each.parts.of(SHIP).archive)
            for each in self.live.values()
            if each.parts.of(SHIP) is not None
        )

    # ---- archives come

    async def put(self, uid: int, request: PutFiles) -> tuple[int, bool]:
        """Keep a piece of an archive. Return how many bytes there are, and whether it is whole.
        Raise `ShipRefused`, `OSError`."""
        async with self._turn(uid):
            return await in_thread(
                lambda named: self.files.put(
                    uid,
                    request.archive,
                    request.size,
                    request.offset,
                    request.data,
                    last=request.last,
                    named=named,
                ),
                self.named(),
            )

    def _turn(self, uid: int) -> trio.Lock:
        return self._turns.setdefault(uid, trio.Lock())

    async def send(self, uid: int, ship: Ship, ask: Ask) -> None:
        """Bring the files of a run to another node, as far as it does not have them. `ask` asks its
        daemon. Raise `ShipRefused`, `OSError`."""
        if not self.files.is_whole(uid, ship.archive):
            raise ShipRefused(NOT_HERE.format(os.fsdecode(ship.directory)))
        data, offset, last = b"", 0, False
        while True:
            kept = await ask(
                PutFiles(
                    id=0, archive=ship.archive, size=ship.size, offset=offset, data=data, last=last
                )
            )
            if isinstance(kept, Error) and kept.code not in {
                ErrorCode.UNAVAILABLE,
                ErrorCode.INTERNAL,
            }:
                raise ShipRefused(kept.message)
            if not isinstance(kept, FilesKept):
                raise ConnectionAbortedError(
                    kept.message if isinstance(kept, Error) else "it does not speak this protocol"
                )
            if kept.whole:
                return
            offset = kept.offset
            data, last = await in_thread(self.files.piece, uid, ship.archive, offset)

    # ---- the run works in a copy

    def directory(self, uid: int, ship: Ship) -> bytes:
        """Return the directory in which a run of a user works."""
        return os.path.join(
            os.fsencode(self.files.copy_of(uid, ship.archive)), b"own/files", ship.within
        ).rstrip(b"/")

    def first_step(self, live: Live) -> tuple[list[bytes], bytes] | None:
        """Return the first step of a run (`LaunchSpec.first_step`) and where that starts; `None` if
        no files were sent. Raise `OSError`."""
        ship = live.parts.of(SHIP)
        if ship is None:
            return None
        if not self.files.is_whole(live.uid, ship.archive):
            raise FileNotFoundError(NOT_HERE.format(os.fsdecode(ship.directory)))
        owner = None if live.credentials is None else (live.credentials.uid, live.credentials.gid)
        copy = str(self.files.begin(live.run.id, live.uid, ship, owner))
        step = step_words(
            copy=copy, cwd=self.directory(live.uid, ship), git=ship.git, author=ship.author,
            most=self.files.most, sealed=live.parts.sandbox is not None,
        )  # fmt: skip
        return step, os.fsencode(f"{copy}/own")

    def environment(self, live: Live, env: list[bytes]) -> list[bytes]:
        """Return the environment of a run in a copy: without what would lead git elsewhere, and
        with its directory."""
        ship = live.parts.of(SHIP)
        if ship is None:
            return env
        here = b"PWD=" + self.directory(live.uid, ship)
        return [
            here if item.startswith(b"PWD=") else item
            for item in env
            if not item.startswith(_LOCAL)
        ]

    # ---- what is deleted, for a thread

    def remove(self, runs: Collection[RunId], *, dry: bool) -> int:
        """See `durable.maintenance.Kept`."""
        return self.files.remove(runs, dry=dry)

    def remove_old(self, old: Old) -> str:
        """See `durable.maintenance.Kept`. What no run has named is deleted, too."""
        named = trio.from_thread.run_sync(self.named)
        count = self.files.remove_old(old, named)
        return f"deleted the files that {count} runs had been sent with" if count else ""

    # ---- what it has changed

    async def pack(
        self, shipment: Shipment, user: Credentials | None, *, patch: bool
    ) -> tuple[str, int]:
        """Pack what a run has changed. Return the name of the archive and its bytes. Raise
        `ShipRefused`, `OSError`."""
        name, copy = secrets.token_hex(16), str(self.files.directory / shipment.copy)
        words = pack_words(
            copy=copy, name=name, git=shipment.ship.git, most=self.files.most, patch=patch
        )
        env = [b"PATH=" + os.fsencode(os.environ.get("PATH", os.defpath))]
        command = ContainedCommand(words, os.fsencode(f"{copy}/own"), env, b"", PACK_SECONDS, user)
        async with self._turn(shipment.uid):
            result = await self.processes.run(command, trio.CancelScope(), operators=False)
        try:
            packed = msgspec.json.decode(result.output.rpartition(b"\n" + ANSWER)[2], type=_Packed)
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = result.output.decode(errors="replace").strip()[-200:]
            raise ShipRefused(f"the changes could not be packed: {said or result.how}") from None
        if packed.error is not None:
            raise ShipRefused(packed.error)
        return name, packed.size

    async def packed(self, shipment: Shipment, name: str, offset: int) -> bytes:
        """Return a piece of an archive of changes. Raise `OSError`."""
        return await in_thread(self.files.packed, shipment, name, offset)
