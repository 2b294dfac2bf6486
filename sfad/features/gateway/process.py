"""A gateway's process: starts it, watches it, adopts that of an earlier daemon, and tells runs
where it is."""

import json
import math
import os
import re
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import psutil
import trio

from ...host.files import UNDECODABLE, create, keep_damaged, read
from ...host.log import Log
from ...host.probe import no_inodes, user_name
from ...processes import kernel
from ...processes.launcher import Launcher
from ...processes.own_processes import UNKNOWN, OwnProcess, keep
from ...protocol.event_types import EventType
from ...protocol.types import Severity
from .feature import GatewayConfig
from .program.call_journal import Noted, noted_in

PROGRAM = "sfad.features.gateway.program"
LISTENER = 3
"""The descriptor under which the gateway finds its listener."""
RECORD, JOURNAL = ".json", ".calls"
"""The files of a gateway, after `gateway`, or `gateway-UID`."""
PAUSE, PAUSE_MAX = 0.1, 5.0
"""Seconds until an ended gateway is started again."""
FAILING = 0.8
"""The pause from which on callers are refused meanwhile. They must not wait for a gateway that
cannot start."""
BACKLOG = 512
UNUSED_MAX = 10.0
"""Seconds that a gateway which does not always run goes on after the last run that may use it: runs
may follow each other, and a start takes 0.4 s of a CPU."""
BEGINNING = 30.0
"""Seconds that the process has to begin its work, for which starts wait. It takes 0.4 s of a CPU,
and has no end if a file system does not answer, or the process was stopped."""
LAST_CALLS = 1.0
"""Seconds that the gateway has to end when the daemon does, after its last run has ended."""


_USERS_ENV = re.compile(
    r"PYTHON|LD_LIBRARY_PATH$|PATH$|LANG$|LC_|TZ$|SSL_CERT_(FILE|DIR)$|(https?|all|no)_proxy$",
    re.IGNORECASE,
)
"""The variables of the daemon that a user's gateway gets. Others may be keys of the operator's."""

ANY_RUN = "ANY-RUN"
"""Stands for the run in the gateway's address until it is launched, where runs have no cgroup."""


class GatewayRecord(msgspec.Struct):
    """What the next daemon must know: runs keep the address, and calls may be under way."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    secret: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """Names of runs in addresses are signed with that of the service's own gateway."""
    pid: Annotated[int, msgspec.Meta(ge=0, lt=1 << 22)] = 0
    started: Annotated[int, msgspec.Meta(ge=0)] = 0
    """When the process started, in clock ticks: its pid may be used again."""


class Serving:
    """What a start that needs the gateway waits for."""

    def __init__(self) -> None:
        self._told = trio.Event()
        self._trouble: str | None = None

    @property
    def known(self) -> bool:
        """Whether `wait` returns at once."""
        return self._told.is_set()

    def tell(self, trouble: str | None) -> None:
        """Say that the gateway has begun its work, or why it cannot."""
        self._trouble = trouble
        self._told.set()

    async def wait(self) -> str | None:
        """Return why the gateway cannot be started; `None` once it has begun its work."""
        if not self.known:
            await self._told.wait()
        return self._trouble


class GatewayProcess:
    def __init__(
        self,
        config: GatewayConfig,
        launcher: Launcher,
        log: Log,
        tell: Callable[[EventType, str, Severity], None],
        settle: Callable[[Noted], Awaitable[None]],
        in_use: Callable[[], bool],
        damaged: Callable[[str], None],
        ports: set[int],
        *,
        uid: int | None,
        sock: str,
        state_dir: str,
    ) -> None:
        """Adopt the gateway of an earlier daemon, or bind the address of a new one if it is
        enabled. `tell` announces an event. `settle` is awaited before a new one is started, with
        what the one before has noted of its calls. `in_use` returns whether a live run uses it.
        `damaged` is told of a file that cannot be read. `ports`: those of all gateways. `uid`: the
        user that it becomes; `None`: it stays the daemon's own."""
        self.uid = uid
        self._name = "the gateway" if uid is None else f"the gateway of user {user_name(uid)}"
        self._ports = ports
        self._tell = tell
        self._settle = settle
        self._in_use = in_use
        self._damaged = damaged
        self._launcher = launcher
        self._process = OwnProcess(launcher)
        self.is_process = self._process.has
        self._log = log
        self._daemon = sock
        files = "gateway" if uid is None else f"gateway-{uid}"
        self._path, self._journal = (
            Path(state_dir, files + RECORD),
            Path(state_dir, files + JOURNAL),
        )
        self._listener: socket.socket | None = None
        self._changed = trio.Event()
        self._demanded = -math.inf
        """When it was last needed."""
        self._serving = trio.Event()
        """The process has begun its work; that of an earlier daemon has."""
        self._serving.set()
        self._told_to_end = False
        self._stuck: str | None = None
        """Why it was killed."""
        self._waiting: list[Serving] = []
        self._stopped = False
        self._config = config
        self._record = self._read()
        if self._record is not None:
            self._ports.add(self._record.port)
            self._process.adopt(self._record.pid, self._record.started)
        if self.pid is None and (
            self._record is not None or (self._config.enabled is not False and uid is None)
        ):
            try:
                self._bind()  # live runs have its address
            except OSError as error:
                self._log.warning(
                    f"{self._name} has no address yet: {error}; "
                    "the next run that uses it asks again"
                )

    @property
    def _always(self) -> bool:
        return self._config.enabled is True and self.uid is None

    @property
    def pid(self) -> int | None:
        """The process; `None` while there is none."""
        return self._process.pid

    def reconfigure(self, config: GatewayConfig) -> None:
        """Start the gateway, or end it once no run uses it, or have it ask for the config, because
        that was read again."""
        self._config = config
        if config.enabled is not False and self._record is None and self.uid is None:
            self._bind()
        self._process.signal(signal.SIGHUP)
        self._changed.set()

    def start_for_run(self) -> Serving:
        """Have the gateway run until no live run uses it: one is about to. Return what to wait
        for."""
        self._demanded = trio.current_time()
        serving = Serving()
        if self.pid is not None and self._serving.is_set():
            serving.tell(None)
        else:
            self._waiting.append(serving)
            self._changed.set()
        return serving

    def start_ahead(self) -> None:
        """Start the gateway, because a call is likely to come soon. If it cannot be started, the
        call meets that."""
        self._demanded = trio.current_time()
        self._changed.set()

    def note_serving(self) -> None:
        """Note that the process has begun its work."""
        self._serving.set()

    async def _answer_once_serving(self) -> None:
        while not self._serving.is_set():
            with trio.move_on_after(BEGINNING):
                await self._serving.wait()
                break
            self._stuck = f"it has not begun its work within {BEGINNING:g} s"
            self._answer(self._stuck)  # a file system may also keep it from its end
            self._process.signal(signal.SIGKILL)
        self._answer(None)

    def _answer(self, trouble: str | None) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.tell(trouble)

    def _bind(self) -> None:
        found = self._record
        listener = _tcp_socket()
        try:
            if found is not None:
                listener.bind(("127.0.0.1", found.port))
            else:
                _bind_to_free_port(listener)
        except OSError as error:
            if found is None:
                raise
            self._log.warning(
                f"port {found.port} of {self._name} is taken: "
                f"live runs cannot reach their model ({error.strerror})"
            )
            _bind_to_free_port(listener)
        _listen(listener)
        self._listener = listener
        secret = found.secret if found is not None else secrets.token_hex(16)
        self._record = GatewayRecord(listener.getsockname()[1], secret)
        self._ports.add(self._record.port)
        if found is None or found.port != self._record.port:
            self._write()

    def keep(self, listener: int) -> None:
        """Keep the listener of a gateway that an earlier daemon has started: if it dies,
        connections wait for the next gateway."""
        if self._listener is None:
            self._listener = socket.socket(fileno=listener)
        else:
            os.close(listener)

    # ---- what runs are told

    @property
    def url(self) -> str | None:
        """Where it listens; `None` while it is not running and need not."""
        return self.base if self._always or self.pid is not None else None

    def address(self, token: str | None = None) -> str:
        """Return where a run finds its upstreams, each at a path of its name. `token`: the run's,
        unless the address is only shown. Raises `OSError`."""
        if self._launcher.containment == "cgroup":
            return self.base
        return f"{self.base}/run/{token or ANY_RUN}"

    @property
    def base(self) -> str:
        """Its address without the name of a run. Raises `OSError`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """Where it listens on loopback. Raises `OSError`."""
        if self._record is None:
            self._bind()
            self._changed.set()  # connections are waited for
        assert self._record is not None
        return self._record.port

    @property
    def known_port(self) -> int | None:
        """Where it listens, if it has an address yet."""
        return self._record.port if self._record is not None else None

    @property
    def secret(self) -> bytes:
        """What names of runs in addresses are signed with. Raises `OSError`."""
        if self._record is None:
            self._bind()
        assert self._record is not None
        return bytes.fromhex(self._record.secret)

    # ---- the process

    async def serve(self) -> None:
        """Keep the gateway running while it is wanted, until cancelled, or until that of a user has
        no run left that has its address."""
        await keep(self._once, self._failed, PAUSE, PAUSE_MAX, wanted=self._may_be_needed)

    def _may_be_needed(self) -> bool:
        return self.uid is None or self.pid is not None or self._in_use() or self._needed()

    async def _once(self) -> str | None:
        """Wait for the end of the process that is there or needed, or for the need of one. Return
        how it ended, unless it was not wanted."""
        try:
            if self.pid is None:
                if not self._needed():
                    await self._need()
                    return None
                await self._settle(self.noted())
                self._start()
            how = why = await self._watched()
        except OSError as error:
            why = f"{error}{no_inodes(self._path.parent)}"
            how = f"it cannot be started: {why}"
        if not self._serving.is_set():
            self._answer(why)
        if not self._goes_on() or (self._told_to_end and how in {"exit code 0", UNKNOWN}):
            return None  # a run may ask for it while it ends
        self._demanded = trio.current_time()  # calls were under way
        return how

    def _failed(self, how: str, pause: float) -> None:
        message = f"{self._name} ended ({how}); it is started again in {pause:g} s"
        if pause < FAILING:
            self._tell(EventType.GATEWAY_ENDED, message, "medium")
            return
        self._tell(
            EventType.GATEWAY_ENDED,
            f"{message}; until then runs cannot reach their model; the log tells more",
            "high",
        )
        if self._listener is not None:
            # its port stays bound, and without this option no other process can bind it too, and be
            # taken for the gateway
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            self._listener.shutdown(socket.SHUT_RDWR)

    def _needed(self) -> bool:
        """Return whether to start it."""
        demanded = bool(self._waiting) or trio.current_time() < self._demanded + UNUSED_MAX
        return not self._stopped and (self._always or demanded)

    def _goes_on(self) -> bool:
        """Return whether it goes on once it was started."""
        if not self._stopped and self._in_use():
            self._demanded = trio.current_time()
        return self._needed()

    async def _change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    async def _need(self) -> None:
        """Wait until a run or a connection needs it, or until it may be that no run can any
        more."""
        async with trio.open_nursery() as nursery:
            if self._listener is not None:
                _listen(self._listener)  # it was shut down if the gateway died again and again
                nursery.start_soon(self._connection, self._listener)
            with trio.move_on_after(math.inf if self.uid is None else UNUSED_MAX):
                await self._change()
            nursery.cancel_scope.cancel()

    async def _connection(self, listener: socket.socket) -> None:
        """Wait for the first connection. The kernel keeps it until the gateway accepts it."""
        await trio.lowlevel.wait_readable(listener)
        self.start_ahead()

    async def _watched(self) -> str:
        """Wait until the process has ended; tell it to end once it is not wanted. Return how it
        ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_unwanted)
            nursery.start_soon(self._answer_once_serving)
            how = await self._process.ended()
            nursery.cancel_scope.cancel()
        return self._stuck or how

    async def _end_unwanted(self) -> None:
        while self._goes_on():
            with trio.move_on_after(math.inf if self._always else UNUSED_MAX):
                await self._change()
        self._told_to_end = True
        self._process.signal(signal.SIGTERM)

    async def stop(self) -> None:
        """End the gateway, because the daemon ends."""
        self._stopped = True
        self._process.signal(signal.SIGTERM)
        with trio.move_on_after(LAST_CALLS):
            await self._process.ended()
        await self._process.kill()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def forget(self) -> None:
        """Remove its files, which no live run needs any more."""
        if self._record is not None:
            self._ports.discard(self._record.port)
        for path in (self._path, self._journal):
            path.unlink(missing_ok=True)

    def _start(self) -> None:
        self._serving, self._told_to_end, self._stuck = trio.Event(), False, None
        if self._listener is None:
            self._bind()
        assert self._listener is not None
        assert self._record is not None
        _listen(self._listener)
        words = ["-m", PROGRAM, "--daemon", self._daemon]
        words += ["--journal", os.fspath(self._journal)]
        words += [] if self.uid is None else ["--user", str(self.uid)]
        self._record.pid = self._process.start(
            words,
            [(os.POSIX_SPAWN_DUP2, self._listener.fileno(), LISTENER)],
            # until it has a handler: it may be told of a new config at once
            blocked=[signal.SIGHUP],
            env=None if self.uid is None else _USERS_ENV,
        )
        self._record.started = self._process.started
        self._write()
        self._log.info("gateway", pid=self._record.pid, port=self._record.port, uid=self.uid)

    def noted(self) -> Noted:
        """Return what its process, or the one before, has noted of its calls."""
        try:
            return noted_in(self._journal)
        except OSError as error:
            self._log.warning(
                f"{self._journal} cannot be read: {error.strerror}; "
                "calls that were under way count as reserved"
            )
            return Noted([], complete=False)

    # ---- the record

    def _read(self) -> GatewayRecord | None:
        try:
            return msgspec.json.decode(read(self._path), type=GatewayRecord)
        except FileNotFoundError:
            return None
        except (OSError, *UNDECODABLE) as error:
            kept = keep_damaged(self._path)
            self._damaged(
                f"{self._path} cannot be read, so live runs may not reach their model any "
                f"more: {error}; {kept}"
            )
            self._end_unknown()
            return None

    def _end_unknown(self) -> None:
        """End the gateway whose record is lost. No daemon knows it, so it would never end."""
        journal = os.fspath(self._journal)
        for pid in psutil.pids():
            found, words = kernel.stat(pid), kernel.command(pid)
            if found and PROGRAM in words and journal in words:
                with suppress(psutil.Error):
                    if psutil.Process(pid).uids().effective in (os.geteuid(), self.uid):
                        kernel.send(found, signal.SIGKILL)

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        with open(create(new), "wb") as file:
            file.write(json.dumps(msgspec.to_builtins(self._record)).encode())
        new.replace(self._path)


def _tcp_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _listen(listener: socket.socket) -> None:
    # else connections to the gateway before, which the kernel has not forgotten yet, are in the way
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.listen(BACKLOG)


def _bind_to_free_port(listener: socket.socket) -> None:
    # a socket loses a port that the kernel has chosen for it when it is shut down
    with _tcp_socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        listener.bind(chosen.getsockname())
