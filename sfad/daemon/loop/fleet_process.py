"""The process that makes this node's actor: starts it where there is none, and ends with what it
says."""

import os
from contextlib import suppress

import trio

from ...config import FleetConfig
from ...host.log import Log
from ...processes.launcher import Launcher
from ...processes.own_processes import UNKNOWN, OwnProcess
from .fleet import Fleet

PATIENCE = 3.0
"""Seconds that an actor has to connect by itself: that of an earlier daemon, or one that Ray starts
again."""
PAUSE, PAUSE_MAX = 1.0, 60.0
"""Seconds until the next is started where one could not make an actor: doubled each time."""
LIFETIME = 120.0
"""Seconds after which one that hangs is killed: the head of the cluster may not answer."""
MAX_SAID = 2000
"""Bytes of what it says that are kept."""


class FleetProcess:
    def __init__(
        self, config: FleetConfig, fleet: Fleet, launcher: Launcher, log: Log, *, sock: str
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._process = OwnProcess(launcher)
        self._log = log
        self._daemon = sock
        self.trouble: str | None = None
        """Why there is no actor."""

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def serve(self) -> None:
        """Have an actor made whenever none is connected, until cancelled."""
        if self._config.address is None:
            await trio.sleep_forever()
        pause = PAUSE
        while True:
            with trio.move_on_after(PATIENCE):
                await self._fleet.connected.wait()
            while self._fleet.is_connected:
                pause, self.trouble = PAUSE, None
                await self._fleet.disconnected.wait()
                with trio.move_on_after(PATIENCE):
                    await self._fleet.connected.wait()
            try:
                how, said = await self._run()
            except OSError as error:
                how, said = "", f"it cannot be started: {error}"
            with trio.move_on_after(PATIENCE):
                await self._fleet.connected.wait()
            if not self._fleet.is_connected:
                self.trouble = said or f"the process that makes the actor ended with {how}"
                self._log.warning(
                    f"this node is in no fleet: {self.trouble}; tried again in {pause:g} s"
                )
                with trio.move_on_after(pause):
                    await self._fleet.connected.wait()
                pause = min(2 * pause, PAUSE_MAX)

    async def _run(self) -> tuple[str, str]:
        """Start the process. Return how it ended, and what it said last."""
        said, stderr = os.pipe2(os.O_CLOEXEC)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, stderr, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)]
            insecure = ["--insecure"] if self._config.insecure else []
            words = [
                "-m",
                "sfad.fleet",
                "--daemon",
                self._daemon,
                "--node",
                self._fleet.node,
                *insecure,
                str(self._config.address),
            ]
            self._process.start(words, actions)
        finally:
            os.close(stderr)
        try:
            with trio.move_on_after(LIFETIME):
                text = await _read(said)
                return await self._process.ended() or UNKNOWN, text
            return (
                "a time-out",
                f"no answer of the cluster at {self._config.address} within {LIFETIME:g} s",
            )
        finally:
            os.close(said)
            await self._process.kill()


async def _read(descriptor: int) -> str:
    """Return the last line that is written there until it is closed."""
    os.set_blocking(descriptor, False)
    text = b""
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        with suppress(BlockingIOError):
            piece = os.read(descriptor, MAX_SAID)
            if not piece:
                lines = text.decode(errors="replace").strip().splitlines()
                return lines[-1] if lines else ""
            text = (text + piece)[-MAX_SAID:]
