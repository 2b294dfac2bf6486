"""Requests that wait for an answer of the core."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from ..core import commands as c
from ..core import events as e
from ..core.access import Peer
from ..core.asked import SessionAsked
from ..core.run import Run
from ..host.clock import wall_clock
from ..host.closing import close_soon
from ..host.descriptors import Descriptors
from ..launch.credentials import Credentials
from ..launch.launcher import Launcher
from ..metering.metering import program_of
from ..meters import AgentProgram, session_files_of
from ..observe.counts import Counts
from ..protocol.known import BY_REPORT, NO_METER
from ..protocol.messages import Spawn
from ..protocol.types import After, RunId, Status
from ..runs.catalogue import RunCatalogue
from ..runs.live import Live
from ..runs.stdin import StdinPipe
from ..setups import NO_SETUPS, TreeSetups
from .launching import Feed, demand_descriptors
from .translate import asked_of, shown

OnAnswer = Callable[[c.Answer], None]
OnAdmit = Callable[[RunId], None]


@dataclass(slots=True)
class PendingSpawn:
    """A spawn that the core has not decided about. Its descriptors go to the run if it is admitted."""

    spawn: Spawn
    setups: TreeSetups
    descriptors: list[int]
    on_admit: OnAdmit
    program: AgentProgram | None
    caller: RunId | None
    stdin: StdinPipe | None = None
    user: Credentials | None = None
    request: bytes | None = None
    """See `Live.request`."""
    sender: str = ""
    """Who has sent the descriptors, for `closing`."""

    def live(self, run: Run, launcher: Launcher) -> Live:
        """Return the run that it has become, which holds the descriptors now."""
        return Live(
            run,
            self.spawn,
            launcher,
            wall_clock(),
            self.program,
            caller=self.caller,
            descriptors=self.descriptors,
            stdin=self.stdin,
            user=self.user,
            setups=self.setups if run.parent is None else NO_SETUPS,
            request=self.request,
        )

    def close(self) -> None:
        close_soon(self.descriptors, self.sender)
        if self.stdin is not None:
            self.stdin.discard()


@dataclass(slots=True)
class PendingRequests:
    """Puts requests to the core, each with a token, and passes the core's answers on."""

    feed: Feed
    catalogue: RunCatalogue
    descriptors: Descriptors
    counts: Counts
    last_token: int = 0
    _askers: dict[int, list[OnAnswer]] = field(default_factory=dict)
    """Several, where a client lost its connection and has sent its request again on another."""
    _spawns: dict[int, PendingSpawn] = field(default_factory=dict)

    def ask(self, answer: OnAnswer, make: Callable[[int, float], e.Event]) -> None:
        """Feed the event that `make(token, now)` returns. `answer` is called once, with the core's answer."""
        self.feed(make(self._token(answer), trio.current_time()))

    def spawn(
        self,
        peer: Peer,
        spawn: Spawn,
        descriptors: list[int],
        client: int,
        answer: OnAnswer,
        on_admit: OnAdmit,
        session: SessionAsked | None = None,
        user: Credentials | None = None,
        setups: TreeSetups = NO_SETUPS,
        kept: bytes | None = None,
    ) -> None:
        """Ask for a run. It takes over `descriptors`, whatever the answer. `on_admit` is called before `answer` if it is yes. A
        request with the key of an earlier one gets the same answer. `user`: see `LaunchSpec`; `kept`: see `Live.request`.

        Raises `OSError` where too few descriptors are left. Then nothing was asked."""
        known = self.catalogue.answer_to((peer.uid, peer.run, spawn.key)) if spawn.key is not None else None
        if known is not None:
            close_soon(descriptors, peer.who)
            on_admit(known)
            self._answer_again(known, client if spawn.tied else None, answer)
            return
        argv = [shown(word) for word in spawn.argv]
        program = program_of(spawn.meter, argv, kept=spawn.log and spawn.stdio == "files")
        metered = program is not None or spawn.meter == BY_REPORT
        metered = metered or (spawn.meter != NO_METER and session_files_of(spawn.meter, argv) is not None)
        asked = asked_of(spawn, client, session, metered=metered)
        pending = PendingSpawn(
            spawn,
            setups,
            descriptors,
            on_admit,
            program,
            peer.run,
            user=user,
            request=kept,
            sender=peer.who,
        )
        try:
            demand_descriptors(self.descriptors)
            if spawn.stdin == "pipe":
                pending.stdin = StdinPipe.new()
        except OSError:
            pending.close()
            raise
        token = self._token(answer)
        self._spawns[token] = pending
        self.feed(e.SpawnRequested(trio.current_time(), token, peer, asked, self._ended(asked.after)))

    def _ended(self, awaited: Iterable[After]) -> dict[RunId, Status]:
        """Return how those of the runs have ended that are not live."""
        ended = ((after.run, self.catalogue.info(after.run)) for after in awaited if after.run not in self.catalogue.live)
        return {run: info.status for run, info in ended if info is not None and info.status.terminal}

    def take_admitted(self, token: int) -> PendingSpawn:
        """Return an admitted spawn, once. Its descriptors are the caller's now."""
        return self._spawns.pop(token)

    def refused(self, run: Run, launcher: Launcher) -> Live:
        """Return a refused run, which holds no descriptors."""
        assert run.admit_token is not None
        pending, now = self._spawns[run.admit_token], wall_clock()
        return Live(run, pending.spawn, launcher, now, ended_at=now, request=pending.request)

    def answer(self, token: int, answer: c.Answer) -> None:
        unclaimed = self._spawns.pop(token, None)  # a spawn that was not admitted
        if unclaimed is not None:
            unclaimed.close()
        if isinstance(answer, c.SpawnRefused):
            self.counts.spawn_refused(answer.refusal.kind)
        for asker in self._askers.pop(token, ()):
            asker(answer)

    def withdraw(self, asker: OnAnswer, token: int, why: str | None) -> None:
        """Expect no answer to a call of a model, and have the core forget it. `why`: see `CallWithdrawn`."""
        self._askers[token].remove(asker)
        if not self._askers[token]:
            del self._askers[token]
            self.feed(e.CallWithdrawn(trio.current_time(), token, why))

    def askers(self) -> dict[int, list[OnAnswer]]:
        """Return what is called with the core's answers, by token."""
        return dict(self._askers)

    def restore(self, askers: Mapping[int, Sequence[OnAnswer]], *, last_token: int) -> None:
        """Expect the answers to requests that were put to the core before a re-execution."""
        self._askers |= {token: list(waiting) for token, waiting in askers.items()}
        self.last_token = last_token

    def _token(self, answer: OnAnswer) -> int:
        self.last_token += 1
        self._askers[self.last_token] = [answer]
        return self.last_token

    def _answer_again(self, run: RunId, client: int | None, answer: OnAnswer) -> None:
        if client is not None:
            self.feed(e.ClientBack(trio.current_time(), run, client))
        live = self.catalogue.live.get(run)
        if live is not None and live.run.admit_token is not None:
            self._askers[live.run.admit_token].append(answer)
        else:
            answer(c.Known(run))
