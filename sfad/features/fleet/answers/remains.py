"""What is left here of runs on other nodes: the head of each one's result and its last lines. They
are fetched as they come, so that there is an answer when the node has burnt down."""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import trio
from msgspec import Struct, msgpack
from msgspec.structs import replace

from ....core.state.run import Run
from ....durable.maintenance import Kept, Old
from ....host.log import Log
from ....host.tasks import in_thread
from ....protocol.requests.base import Reply, Request
from ....protocol.requests.following import OutputPart, ReadOutput
from ....protocol.requests.records import Result, ResultText
from ....protocol.types import RunId, RunInfo
from ..node import Fleet

EVERY = 10.0
"""Seconds between two looks at what live runs have written."""
MOST = 4096
"""Bytes that are kept of a result, and of each stream."""
AT_ONCE = 8
"""Runs that are looked at at once."""


class Left(Struct, frozen=True):
    """What is kept of one run."""

    stdout: bytes = b""
    stderr: bytes = b""
    offsets: tuple[int, int] = (0, 0)
    """Where these begin in the output."""
    result: str | None = None
    """Its head; `None` while the run has not ended."""
    cut: bool = False
    """The result was longer."""


class Remains:
    def __init__(self, fleet: Fleet, directory: Path, shipped: Kept, log: Log) -> None:
        """`shipped`: what else is deleted with the output of ended runs."""
        self._log = log
        self._fleet, self._directory, self._shipped = fleet, directory, shipped
        self._ended: set[RunId] = set()
        """Runs that have ended, and whose rest is to be fetched."""
        self._places: dict[RunId, tuple[str, RunId]] = {}
        self._known: dict[RunId, Left] = {}
        """What was fetched last of live runs."""
        self._silent: set[str] = set()
        """Nodes that have not answered in this round."""
        self._soon = trio.Event()

    def ended(self, run: Run) -> None:
        """Fetch the rest of a run that has ended on another node."""
        remote = run.remote
        if remote is not None and remote.node is not None and remote.id:
            self._places[run.id] = remote.node, remote.id
            self._ended.add(run.id)
            self._soon.set()

    async def serve(self) -> None:
        """Fetch what runs write, until cancelled."""
        while True:
            with trio.move_on_after(EVERY):
                await self._soon.wait()
            self._soon = trio.Event()
            for run in self._fleet.runs_elsewhere():
                if run.remote is not None and run.remote.node is not None and run.remote.id:
                    self._places[run.id] = run.remote.node, run.remote.id
            places, self._places = list(self._places.items()), {}
            self._silent.clear()
            for at in range(0, len(places), AT_ONCE):
                async with trio.open_nursery() as nursery:
                    for run_id, place in places[at : at + AT_ONCE]:
                        nursery.start_soon(self._fetch, run_id, *place)

    async def _fetch(self, run_id: RunId, node: str, there: RunId) -> None:
        """Fetch what is new of a run. A node that does not answer is asked again while the run
        lives."""
        ended = run_id in self._ended
        self._ended.discard(run_id)
        before = self._known.pop(run_id, None)
        if node in self._silent:  # it delays the others once in each round
            return
        try:
            left = await self._left(node, there, ended=ended)
        except OSError:
            self._silent.add(node)
            return
        if left is not None and left != before:
            try:
                await in_thread(self._write, run_id, left)
            except OSError as error:
                self._log.warning(f"the last lines of run {run_id} on {node} are not kept: {error}")
        if left is not None and not ended:
            self._known[run_id] = left

    async def _left(self, node: str, there: RunId, *, ended: bool) -> Left | None:
        """Return what a node tells of a run; `None` if it keeps nothing of it. Raise `OSError`."""
        asked = ReadOutput(id=0, run=there, stream="stdout", offset=-MOST)
        out = await self._fleet.pass_on(node, asked)
        err = await self._fleet.pass_on(node, replace(asked, stream="stderr"))
        if not isinstance(out, OutputPart) or not isinstance(err, OutputPart):
            return None
        left = Left(out.data, err.data, (out.offset, err.offset))
        if not ended:
            return left
        wanted = Result(id=0, run=there, max_bytes=1 << 20, wrapped=False)
        reply = await self._fleet.pass_on(node, wanted)
        if not isinstance(reply, ResultText):
            return left
        head = reply.text.encode()[:MOST].decode(errors="ignore")
        return replace(left, result=head, cut=reply.truncated or head != reply.text)

    def _write(self, run_id: RunId, left: Left) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / run_id
        new = path.with_name(f"{run_id}.new")
        new.write_bytes(msgpack.encode(left))
        os.replace(new, path)

    # ---- answers in place of the node

    def answer(self, request: Request, run: RunInfo, why: str) -> Reply | None:
        """Return what is left that answers a request about a run whose node does not answer, and
        `why`; `None` if nothing is."""
        try:
            left = msgpack.decode((self._directory / run.id).read_bytes(), type=Left)
        except (OSError, ValueError):
            return None
        match request:
            case ReadOutput():
                data = left.stdout if request.stream == "stdout" else left.stderr
                begin = left.offsets[request.stream != "stdout"]
                end = begin + len(data)
                offset = request.offset if request.offset >= 0 else end + request.offset
                offset = min(max(offset, begin), end)
                over = run.status.terminal
                return OutputPart(id=0, data=data[offset - begin :], offset=offset, ended=over)
            case Result() if left.result is not None:
                words = f"{left.result}\n[{why}: this is what is left of it here]"
                return ResultText(id=0, run=run.id, text=words, truncated=left.cut)
            case Result() if run.status.terminal:
                last = left.stdout.decode(errors="replace")
                words = f"{last}\n[{why}: these are its last lines]"
                return ResultText(id=0, run=run.id, text=words, truncated=True)
        return None

    # ---- what is deleted with the output, in a thread

    def remove(self, runs: Collection[RunId], *, dry: bool) -> int:
        """See `durable.maintenance.Kept`."""
        size = 0
        for run_id in runs:
            path = self._directory / run_id
            with suppress(FileNotFoundError):
                size += path.stat().st_size
                if not dry:
                    path.unlink()
        return size + self._shipped.remove(runs, dry=dry)

    def remove_old(self, old: Old) -> str:
        """See `durable.maintenance.Kept`."""
        for runs in _batches(self._names()):
            old.between()
            times = old.ends(runs)
            for run_id in runs:
                path = self._directory / run_id
                # a file that is being written, or whose run is on no record, has a time itself
                ended = times[run_id] if run_id in times else path.stat().st_mtime
                if (
                    run_id not in old.live
                    and old.cutoff is not None
                    and ended is not None
                    and ended < old.cutoff
                ):
                    path.unlink()
        return self._shipped.remove_old(old)

    def _names(self) -> list[RunId]:
        with suppress(FileNotFoundError):
            return [entry.name for entry in os.scandir(self._directory)]
        return []


def _batches(names: list[RunId]) -> Iterator[list[RunId]]:
    for at in range(0, len(names), 500):
        yield names[at : at + 500]
