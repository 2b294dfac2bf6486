"""The part in a daemon: it decides what runs are checked with, has that executed, and opens
what it has printed."""

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio
from msgspec.structs import replace

from ...core.state.run import Run
from ...daemon.loop.seam import Heart, Part
from ...daemon.server.asker import Asker
from ...host.tasks import in_thread
from ...processes.launcher import LaunchSpec
from ...protocol.errors import RequestError, bad_request, unavailable, wrong_state
from ...protocol.requests.following import OutputPart
from ...protocol.types import LimitKind, RunId, RunInfo, Status
from ...runs.live import Live
from ...storage.output.reopened import Reopenings
from ...storage.output.truncated import Budget, NewestBytes
from .deciding import Deciding
from .feature import DIRECTORY
from .messages import CheckFile, CheckFiles, CheckOutput, ReadCheck
from .printed import Key, Printed

MOST_NUMBER = 1000
"""Above all numbers of attempts and checks."""
LOOK_EVERY = 0.1
"""Seconds between two looks at what a command has printed, while one is executed: what it prints
and truncates between two is lost, unless the daemon is root's."""
MOST_PRINTED = 64 << 20
"""Bytes that are kept of one, where its run has no limit of output."""


@dataclass(slots=True)
class Executed:
    """A command that is executed now."""

    key: Key
    descriptor: int
    """Of what it prints, to read."""
    newest: NewestBytes
    size: int = 0
    """How much it had printed at the last look."""


class Checking:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._live = heart.catalogue.live
        self._printed = Printed(Path(heart.resources.state_dir, DIRECTORY))
        self._executed: dict[RunId, Executed] = {}
        """What is executed now, and prints to a file."""
        self._reopenings, self._memory = Reopenings(), Budget()
        self._begun = trio.Event()

    @property
    def printed(self) -> Printed:
        return self._printed

    def begin(self) -> None:
        """Look after those that an earlier daemon has launched."""
        self.changed([live.run for live in self._live.values() if live.run.latest.stage])

    def changed(self, runs: Collection[Run]) -> None:
        for run in runs:
            known = self._executed.get(run.id)
            if run.latest.stage and (run.pid is not None or run.status is Status.STARTING):
                if known is None or known.key != _key(run):
                    self._follow(run)
            elif known is not None:
                self._forget(run.id)

    def _follow(self, run: Run) -> None:
        """Look after what a command prints."""
        self._forget(run.id)
        with suppress(OSError):  # nothing is kept of it
            found = self._printed.open(run.id, _key(run))
            self._executed[run.id] = Executed(_key(run), found, NewestBytes(self._memory))
            self._reopenings.watch(found)
            self._begun.set()

    def _forget(self, run: RunId) -> None:
        if (one := self._executed.get(run)) is not None:
            self._look_for_truncation(run, one)
            del self._executed[run]
            self._reopenings.unwatch(one.descriptor)
            one.newest.forget()
            os.close(one.descriptor)

    def launch(self, live: Live, spec: LaunchSpec, opened: list[int]) -> LaunchSpec:
        """Return what a run is launched with. Raise `OSError`."""
        run = live.run
        if not run.latest.stage:
            return spec
        stage = run.asked.stages[run.latest.stage - 1]
        output = None
        if live.output.log:
            user = live.credentials
            owner = None if user is None else (user.uid, user.gid)
            output = self._printed.new(run.id, _key(run), owner)
            opened.append(output)
            self._follow(run)
        return replace(
            spec,
            argv=[b"/bin/sh", b"-c", os.fsencode(stage.command)],
            env=spec.env if stage.before else [*spec.env, b"SFA_CHECK=1"],
            stdout=output,
            stderr=output,
        )

    def last_lines(self, live: Live) -> tuple[str, ...]:
        run = live.run.id
        if (one := self._executed.get(run)) is not None:
            self._look_for_truncation(run, one)
        return self._printed.last_lines(run, _key(live.run))

    async def serve(self) -> None:
        """While commands are executed, bound what is kept of what they print, keep what they
        truncate, and take more of it for a sign of life."""
        with self._reopenings.served():
            while True:
                await self._begun.wait()
                self._begun = trio.Event()
                while self._executed:
                    await trio.sleep(LOOK_EVERY)
                    for run, one in list(self._executed.items()):
                        if (live := self._live.get(run)) is None:
                            self._forget(run)
                        elif self._executed.get(run) is one:
                            await self._look(live, one)

    async def _look(self, live: Live, one: Executed) -> None:
        run, bound = live.run.id, live.run.limits.get(LimitKind.OUTPUT)
        keep = MOST_PRINTED if bound is None else int(bound.limit.threshold)
        if (size := self._look_for_truncation(run, one)) == one.size:
            return
        one.size = size
        live.hear(trio.current_time())
        if size > keep:
            with suppress(OSError):  # the file system cannot, or the disk is ill
                await in_thread(self._printed.free, run, one.key, keep)

    def _look_for_truncation(self, run: RunId, one: Executed) -> int:
        """Save what was there before a command truncated its output. Return the size of that."""
        with suppress(OSError):
            status, truncated = self._reopenings.truncations(one.newest, one.descriptor)
            for found in truncated:
                self._printed.save(run, one.key, found)
            return status.st_size
        return one.size

    def list_(self, asker: Asker, request: CheckOutput) -> None:
        """List what the commands of a run have printed."""
        info = self._found(asker, request)
        if info is None:
            return
        try:
            keys = self._printed.keys(info.id)
        except OSError as error:
            raise _unreadable(error) from None
        ended = info.status.terminal
        if not keys and ended:
            raise wrong_state(
                f"run {info.id} has no output of checks: none was executed, or it is not kept"
            )
        commands = {at: each.command for at, each in enumerate(info.checks, 1)}
        files = [
            CheckFile(attempt=attempt, number=number, command=commands.get(number, ""))
            for attempt, number in keys
        ]
        asker.reply(CheckFiles(id=asker.id, run=info.id, files=files, ended=ended))

    def read(self, asker: Asker, request: ReadCheck) -> None:
        """Return a piece of what a command has printed."""
        info = self._found(asker, request)
        if info is None:
            return
        key = request.attempt, request.number
        if not 0 <= min(key) <= max(key) < MOST_NUMBER:
            raise bad_request(f"there is no check {request.number} of attempt {request.attempt}")
        try:
            offset, data = self._printed.piece(info.id, key, request.offset)
        except (OSError, OverflowError) as error:
            raise _unreadable(error) from None
        ended = info.status.terminal
        asker.reply(OutputPart(id=asker.id, data=data, offset=offset, ended=ended))

    def _found(self, asker: Asker, request: CheckOutput | ReadCheck) -> RunInfo | None:
        """Return the run of a request; `None` if the node answers where it executes. Raise
        `RequestError`."""
        info = self._heart.catalogue.info(asker.find(request.run))
        assert info is not None
        elsewhere = info.fleet is not None
        return (
            None if elsewhere and self._heart.parts().answer_there(asker, request, info) else info
        )


def _unreadable(error: Exception) -> RequestError:
    return unavailable(f"the output of its checks cannot be read: {error}")


def _key(run: Run) -> Key:
    """Return what names the file of a run's stage: a setup, of which there is one, has 0."""
    before = sum(stage.before for stage in run.asked.stages)
    return run.attempt, run.latest.stage - before


def part(heart: Heart) -> Part:
    deciding, checking = Deciding(heart), Checking(heart)
    return Part(
        verbs={CheckOutput: checking.list_, ReadCheck: checking.read},
        reconfigure=deciding.reconfigure,
        decide=deciding.decide,
        begin=checking.begin,
        serve=checking.serve,
        changed=checking.changed,
        launch=checking.launch,
        last_lines=checking.last_lines,
        kept=checking.printed,
    )
