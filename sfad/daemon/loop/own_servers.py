"""Sees agent programs that hand work to a server of their own outside of their run (docs/guard.md):
by their command lines, and by connections to the paths on which such servers listen.

Without an agent program that has such a server in a live run, nothing is looked at.
"""

import math
import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import trio

from ...agents import OWN_SERVERS
from ...agents.own_server import OwnServer, ServerCall, call_of, sentence, words_alone
from ...core import events as e
from ...core.state.naming import executed_word, named_word, program_name
from ...core.state.policy import Invalid
from ...host.linux import sockets
from ...host.tasks import in_thread
from ...processes import kernel
from ...processes.launcher import Launcher, Unidentifiable
from ...protocol.types import RunId
from ...runs.live import Live
from ...start.prepared import Prepared, Surroundings

LOOK_EVERY, LOOK_EVERY_MAX = 1.0, 30.0
"""Seconds between two looks at connections, after a program was seen and after a long while."""
SLOWER = 1.25
_OFF = {b"", b"0", b"false", b"no", b"off"}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class ServerWatch:
    def __init__(self, live: Mapping[RunId, Live], launcher: Launcher, feed: e.Feed) -> None:
        self._live = live
        self._launcher = launcher
        self._feed = feed
        self._programs: dict[tuple[int, int], tuple[RunId, str]] = {}
        """Those with sockets that are alive, as far as is known, by pid and start."""
        self._seen = trio.Event()

    def agent_seen(self, run: RunId, process: e.AgentProcess) -> None:
        """Look at a process that executes an agent program."""
        server, live = OWN_SERVERS.get(process.program), self._live.get(run)
        if server is None or live is None or process.serves:
            return
        if server.sockets is not None:
            self._programs[process.pid, process.started] = run, process.program
            self._seen.set()
        call = self._call(process, server)
        if call is not None and call.act in {"start", "outside"}:
            if call.address is not None and self.serves_in_tree(
                call.address, live.run.root.id, process.pid
            ):
                return
            gets = call.server or "a background server of the program"
            self._tell(run, process.program, f"`{call.what}` hands work to {gets}")

    def _call(self, process: e.AgentProcess, server: OwnServer) -> ServerCall | None:
        words = kernel.command(process.pid) or process.command.split(" ")
        at = process.word if process.word is not None else executed_word(words, process.program)
        call = call_of(process.program, server, words[at + 1 :]) if at is not None else None
        if call is None or call.act != "start" or server.background is None:
            return call
        refused = kernel.variable(process.pid, server.background.refused_by.encode()) or b""
        return call if refused.lower() in _OFF else None

    def serves_in_tree(self, address: str, root: RunId, pid: int) -> bool:
        """Return whether a process of a tree listens at an address, as a process sees it, or none
        does."""
        parts = urlsplit(address if "://" in address else f"http://{address}")
        try:
            port = parts.port or {"https": 443, "wss": 443}.get(parts.scheme, 80)
        except ValueError:
            return False
        if parts.scheme == "unix" or parts.hostname not in _LOOPBACK:
            return False
        inodes = sockets.listening(port, pid)
        holders = sockets.holders(inodes) if inodes else {}
        return not inodes or any(
            self._in_tree(each, root) for found in holders.values() for each in found
        )

    def _in_tree(self, pid: int, root: RunId) -> bool:
        try:
            run = self._launcher.run_of(pid, None)
        except (Unidentifiable, OSError):
            return False
        live = self._live.get(run) if run is not None else None
        return live is not None and live.run.root.id == root

    def check(self, p: Prepared, around: Surroundings) -> None:
        """Refuse a command that hands its work to a server outside of the run."""
        call, caller = server_call(p.command.argv), around.caller
        if call is None or call.act not in {"start", "outside"}:
            return
        if (
            call.address is not None
            and caller is not None
            and self.serves_in_tree(call.address, caller.run.root.id, around.client)
        ):
            return
        program, _ = _words_after(p.command.argv)
        raise Invalid(sentence(call, program, for_model=caller is not None))

    async def serve(self) -> None:
        pause = LOOK_EVERY
        while True:
            with trio.move_on_after(pause if self._programs else math.inf):
                await self._seen.wait()
                self._seen, pause = trio.Event(), LOOK_EVERY
                await trio.sleep(pause)
            self._programs = {
                each: found
                for each, found in self._programs.items()
                if found[0] in self._live and kernel.is_alive(*each)
            }
            if self._programs:
                await self._look()
                pause = min(SLOWER * pause, LOOK_EVERY_MAX)

    async def _look(self) -> None:
        """Find connections of the programs to servers outside of their trees."""
        patterns = {program: OWN_SERVERS[program].sockets for _, program in self._programs.values()}
        try:
            found = await in_thread(sockets.unix_connections, abandon=True)
            wanted = [
                each
                for each in found
                if any(p is not None and p.fullmatch(each.path) for p in patterns.values())
            ]
            if not wanted:
                return
            inodes = {inode for each in wanted for inode in (each.server, each.client)}
            holders = await in_thread(sockets.holders, inodes, abandon=True)
        except OSError:
            return  # no thread, or no answer of the kernel: the next look may have one
        by_pid = {pid: found for (pid, _), found in self._programs.items()}
        for connection in wanted:
            clients = holders.get(connection.client, set()) & by_pid.keys()
            servers = holders.get(connection.server, set()) - {os.getpid()}
            for pid in clients:
                run, program = by_pid[pid]
                pattern, live = patterns[program], self._live.get(run)
                if live is None or pattern is None or not pattern.fullmatch(connection.path):
                    continue
                root = live.run.root.id
                # a server that this user may not look at is another user's
                if not any(self._in_tree(server, root) for server in servers):
                    self._tell(run, program, f"it is connected to its server at {connection.path}")

    def _tell(self, run: RunId, program: str, what: str) -> None:
        self._feed(e.HandedOff(trio.current_time(), run, program, what))


# ---- Steps of `Starting.prepare`


def _words_after(argv: Sequence[bytes]) -> tuple[str, list[str]]:
    """Return the program of a command and the words after it; none where no word names it."""
    words = [os.fsdecode(word) for word in argv]
    program = program_name(words)
    at = named_word(words, program) if program in OWN_SERVERS else None
    return program, [] if at is None else words[at + 1 :]


def server_call(argv: Sequence[bytes]) -> ServerCall | None:
    """Return what a command asks of a server of its program; `None` if it asks nothing."""
    program, given = _words_after(argv)
    return call_of(program, OWN_SERVERS.get(program), given) if given else None


def keep_alone(p: Prepared, _: Surroundings) -> None:
    """Have a program do its work itself that would use a server of its own, which a person or
    another run may have started."""
    argv = p.command.argv
    program, given = _words_after(argv)
    if program in OWN_SERVERS and (more := words_alone(OWN_SERVERS[program], given)):
        at = len(argv) - len(given)
        p.command.argv = [*argv[:at], *map(os.fsencode, more), *argv[at:]]
