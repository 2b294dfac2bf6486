"""Watches over the state directory: whether it is in its place, whether the ledger can be written,
whether the disk is full."""

from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ...host.linux.displacement import Displacement
from ...protocol.event_types import EventType
from ...runs.catalogue import RunCatalogue
from ...usage.metering import Metering
from .announcing import Announcer
from .resources import Resources

NO_ROOM = 64 * 1024
"""Bytes. A disk with less room counts as full."""


class StorageWatch(Struct):
    """Tells, once for each change, what is wrong with the state directory."""

    resources: Resources
    catalogue: RunCatalogue
    metering: Metering
    announcer: Announcer
    _lost: str | None = None
    _looked: int = -1
    """The round of the last look."""

    @property
    def unwritable(self) -> str | None:
        """Why no new run is started, and what helps; `None` if the ledger can be written."""
        return self.look() or self.resources.ledger.trouble

    def look(self) -> str | None:
        """Look once a round whether the state directory, and the spool in it, are where they were.
        Return why the directory is not."""
        if self._looked == self.resources.rounds.number:
            return self._lost
        self._looked = self.resources.rounds.number
        lost, before = self.resources.state_dir_lost(), self._lost
        self._lost = lost
        if lost is None:
            self.resources.spool.put_back(self.catalogue.live.values())
        if lost is not None and before is None:
            self.resources.log.error(f"{lost}; new runs are refused, and live runs go on")
            self.announcer.tell(
                EventType.DAEMON_STATE_DIR_LOST, f"{lost}; new runs are refused", "medium"
            )
        elif lost is None and before is not None:
            self.resources.log.warning(
                f"the state directory {self.resources.state_dir} is back; "
                "new runs are admitted again"
            )
            self.announcer.tell(
                EventType.DAEMON_STATE_DIR_BACK,
                f"the state directory {self.resources.state_dir} is back",
                "medium",
            )
        return lost

    async def serve(self) -> None:
        """Look whenever another process may have moved, removed or replaced what the daemon has
        open, until cancelled. Each admission and each write look as well."""
        state_dir, settled = Path(self.resources.state_dir), False
        while True:
            with Displacement(directories=[state_dir, state_dir / "spool"]) as displacement:
                lost = self.look()
                if lost is None:
                    self.resources.ledger.look_after()
                    self.metering.look_after()
                settled = await displacement.wait(settled=settled and lost is None)

    def ledger_put_back(self, note: str) -> None:
        """Another process had removed or replaced the ledger, and it was written again."""
        self.resources.log.error(note)
        self.announcer.tell(EventType.DAEMON_LEDGER_REPLACED, note, "high")

    def ledger_failing(self, error: str | None, lost: int) -> None:
        """The ledger cannot be written, or can be again (`error` is `None`). `lost` records will
        never be written."""
        if error is None:
            self.resources.log.warning("the ledger can be written again", lost=lost)
            return
        self.resources.log.error(
            f"the ledger cannot be written: {error}; new runs are refused, ends are held in memory",
            lost=lost,
        )
        self.announcer.tell(
            EventType.DAEMON_LEDGER_FAILING,
            f"the ledger cannot be written: {error}; new runs are refused",
            "medium",
        )

    def tell_of_full_disk(self) -> None:
        """Warn the runs whose output goes to a full disk. They write it themselves, and the daemon
        sees no error."""
        with suppress(OSError):
            if self.resources.output.room() < NO_ROOM:
                message = (
                    f"no room is left in {self.resources.output.directory}: what it prints is lost"
                )
                for run in [run for run, live in self.catalogue.live.items() if live.kept]:
                    self.announcer.tell_of_run(EventType.DISK_FULL, run, message, "high")
