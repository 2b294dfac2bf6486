"""The process that makes this node's actor: starts it where there is none, and ends with what it
says."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import trio

from ...host.log import Log
from ...processes import kernel
from ...processes.launcher import Launcher
from ...processes.own_processes import OwnProcess, keep
from . import ray
from .feature import FleetConfig
from .node import Fleet
from .ray import command

PATIENCE = 3.0
"""Seconds that an actor has to connect by itself: that of an earlier daemon, or one that Ray starts
again."""
PAUSE, PAUSE_MAX = 1.0, 15.0
"""Seconds until the next is started where one could not make an actor."""
HEAD_WITHIN = 2.0
"""Seconds that the cluster's head has to take a connection."""
KEEPING = f"{ray.__name__}.keeping"
GENERATIONS = 16
"""Ancestors of a process that are looked at."""
LIFETIME = 120.0
"""Seconds after which one that hangs is killed: the head of the cluster may not answer."""


class FleetProcess:
    def __init__(
        self,
        config: FleetConfig,
        fleet: Fleet,
        launcher: Launcher,
        log: Log,
        *,
        sock: str,
        lock: Path,
    ) -> None:
        """`lock`: a file that the process which keeps Ray has locked."""
        self._config = config
        self._fleet = fleet
        self._process, self._ray = OwnProcess(launcher), OwnProcess(launcher)
        self._lock = lock
        self._keepers: set[tuple[int, int]] = set()
        """The process that keeps Ray, and the one that it has started, each with its start."""
        self._log = log
        self._daemon = sock
        self._said = ""
        self.trouble: str | None = None
        """Why there is no actor."""

    async def serve(self) -> None:
        """Have an actor made whenever none is connected, until cancelled."""
        if self._config.address is None:
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            if self._config.start is not None:
                nursery.start_soon(self._serve_ray)
            await keep(self._make, self._failed, PAUSE, PAUSE_MAX)

    async def _serve_ray(self) -> None:
        """Have Ray started, and started again, until cancelled."""
        await keep(self._guard_ray, self._failed, PAUSE, PAUSE_MAX)

    async def _guard_ray(self) -> str | None:
        said = ""

        def heard(line: str) -> None:
            nonlocal said
            said = line

        config = self._config
        where = str(config.address)
        if config.start == command.HEAD:
            where = f"{command.HEAD}:{where.rpartition(':')[2]}"
        words = ["-m", KEEPING, "--lock", str(self._lock), "--node", self._fleet.node]
        how = await self._ray.run([*words, *self._token, where], heard)
        return f"Ray is not kept: {said or how}"

    def is_of_ray(self, pid: int) -> bool:
        """Return whether a process belongs to the Ray that is kept here: a descendant of the
        daemon that is in no run."""
        if any(self._is_below(pid)):
            return True
        with suppress(OSError, ValueError):
            numbers = list(map(int, self._lock.read_text().split()))
            self._keepers = set(zip(numbers[::2], numbers[1::2], strict=True))
        return any(self._is_below(pid))

    def _is_below(self, pid: int) -> Iterator[bool]:
        for _ in range(GENERATIONS):
            found = kernel.stat(pid)
            if found is None or pid <= 1:
                return
            yield (pid, found.started) in self._keepers
            pid = found.parent

    @property
    def _token(self) -> list[str]:
        file = self._config.token_file
        return ["--token-file", file] if file is not None else []

    async def _make(self) -> str | None:
        """Have an actor made once none is connected. Return why there is none."""
        await self._connect()
        while self._fleet.is_connected:
            self.trouble = None
            await self._fleet.disconnected.wait()
            await self._connect()
        if not await self._head_answers():
            return None
        self._said = f"no answer of the cluster at {self._config.address} within {LIFETIME:g} s"
        how = ""
        with trio.move_on_after(LIFETIME):
            how = await self._run()
        await self._connect()
        why = self._said or f"the process that makes the actor ended with {how}"
        return None if self._fleet.is_connected else why

    async def _head_answers(self) -> bool:
        """Return whether the cluster's head takes connections, once it does or there is an actor
        after all. What makes one would wait for long, and be started again only after a pause."""
        host, _, port = str(self._config.address).rpartition(":")
        while host and not self._fleet.is_connected:
            with suppress(OSError), trio.move_on_after(HEAD_WITHIN):
                await (await trio.open_tcp_stream(host, int(port))).aclose()
                self.trouble = None
                return True
            self.trouble = f"the head of the cluster at {self._config.address} does not answer"
            await trio.sleep(PAUSE)
        return not host

    async def _connect(self) -> None:
        with trio.move_on_after(PATIENCE):
            await self._fleet.connected.wait()

    def _failed(self, why: str, pause: float) -> None:
        self.trouble = why
        self._log.warning(f"this node is in no fleet: {why}; tried again in {pause:g} s")

    async def _run(self) -> str:
        said = ""

        def heard(line: str) -> None:
            nonlocal said
            said = line

        words = ["-m", ray.__name__, "--daemon", self._daemon, "--node", self._fleet.node]
        words += ["--insecure"] if self._config.insecure else []
        words += self._token
        how = await self._process.run([*words, str(self._config.address)], heard)
        self._said = said
        return how
