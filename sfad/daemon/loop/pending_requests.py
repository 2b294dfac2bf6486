"""Requests that wait for an answer of the core."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio
from msgspec import Struct, field

from ...agents.setup_reader import NO_SETUPS
from ...core import commands as c
from ...core import events as e
from ...core.state.run import Run
from ...host.clock import after_stamp, wall_clock
from ...host.counts import Counts
from ...host.linux.descriptors import Descriptors, close_soon
from ...processes.launcher import Launcher
from ...protocol.types import After, RunId, Status
from ...runs.catalogue import RunCatalogue
from ...runs.live import ContinuedWith, Live, StdinPipe
from ...start.prepared import Prepared, Surroundings

OnAnswer = Callable[[c.Answer], None]


class PendingSpawn(Struct, eq=False):
    """A spawn that the core has not decided about. Its descriptors go to the run if it is
    admitted."""

    prepared: Prepared
    around: Surroundings
    descriptors: list[int] = []
    admitted: Callable[[RunId], object] | None = None
    """Called before the answer if it is yes."""
    stdin: StdinPipe | None = None
    """If the run gets a pipe as its stdin."""

    def live(self, run: Run, launcher: Launcher, *, refused: bool = False) -> Live:
        """Return the run that it has become, which holds the descriptors now; or the `refused` one
        that it would have become, which holds none."""
        p, around, now = self.prepared, self.around, wall_clock()
        order, peer = around.order, around.peer
        return Live(
            run,
            p.command,
            p.output,
            p.parts,
            launcher,
            now,
            p.program,
            p.session_files,
            order=order if order.placing is not None else None,
            caller=peer.run,
            request_key=order.key,
            descriptors=[] if refused else self.descriptors,
            stdin=None if refused else self.stdin,
            ended_at=now if refused else None,
            credentials=around.user,
            setups=around.setups if run.parent is None else NO_SETUPS,
            for_recall=p.for_recall,
            continued_with=ContinuedWith(order.env, order.umask, peer.uid, peer.user, around.user)
            if p.continued_if_lost
            else None,
        )

    def close(self) -> None:
        close_soon(self.descriptors, self.around.peer.who)
        if self.stdin is not None:
            self.stdin.discard()


class PendingRequests(Struct):
    """Puts requests to the core, each with a token, and passes the core's answers on."""

    feed: e.Feed
    catalogue: RunCatalogue
    descriptors: Descriptors
    counts: Counts
    last_token: int = 0
    askers: dict[int, list[OnAnswer]] = field(default_factory=dict)
    """What is called with the answers, by token. Several, where a client lost its connection and
    has sent its request again on another."""
    spawns: dict[int, PendingSpawn] = field(default_factory=dict)
    """Those that the core has not decided about. What takes an admitted one out has its descriptors
    then."""

    def ask(self, asker: OnAnswer, make: Callable[[int, float], e.Event]) -> None:
        """Feed the event that `make(token, now)` returns. `asker` is called once, with the core's
        answer."""
        self.feed(make(self._token(asker), trio.current_time()))

    def spawn(self, pending: PendingSpawn, asker: OnAnswer) -> None:
        """Ask for a run. It takes over the descriptors, whatever the answer. A request with the key
        of an earlier one gets the same answer.

        Raises `OSError` where too few descriptors are left. Then nothing was asked."""
        asked, peer, key = pending.prepared.asked, pending.around.peer, pending.around.order.key
        known = self.catalogue.answer_to((peer.uid, peer.run, key)) if key is not None else None
        if known is not None:
            pending.close()
            if pending.admitted is not None:
                pending.admitted(known)
            self.answer_again(known, asked.tied_to, asker)
            return
        try:
            self.descriptors.check_spawn()
            if pending.prepared.output.stdin == "pipe":
                pending.stdin = StdinPipe.new()
        except OSError:
            pending.close()
            raise
        token = self._token(asker)
        self.spawns[token] = pending
        after, by, until = asked.queueing.after, None, None
        if asked.continues is not None and (info := self.catalogue.info(asked.continues)):
            by = info.continued_by
        if asked.grant is not None and asked.grant.lease is not None:
            until = after_stamp(asked.grant.stamp, asked.grant.lease)
        ended, now = self._ended(after) if after else {}, trio.current_time()
        self.feed(e.SpawnRequested(now, token, peer, asked, ended, by, until, time.time()))

    def _ended(self, awaited: Iterable[After]) -> dict[RunId, Status]:
        """Return how those of the runs have ended that are not live."""
        runs = [each.run for each in awaited if each.at is None]
        found = [self.catalogue.info(run) for run in runs if run not in self.catalogue.live]
        return {info.id: info.status for info in found if info and info.status.terminal}

    def answer(self, token: int, answer: c.Answer) -> None:
        unclaimed = self.spawns.pop(token, None)  # a spawn that was not admitted
        if unclaimed is not None:
            unclaimed.close()
        if isinstance(answer, c.SpawnRefused):
            self.counts.spawn_refused(answer.refusal.kind)
        for asker in self.askers.pop(token, ()):
            asker(answer)

    def withdraw(self, asker: OnAnswer, token: int, why: str | None) -> None:
        """Expect no answer to a model call, and have the core forget it. `why`: see
        `CallWithdrawn`."""
        self.askers[token].remove(asker)
        if not self.askers[token]:
            del self.askers[token]
            self.feed(e.CallWithdrawn(trio.current_time(), token, why))

    def restore(self, askers: Mapping[int, Sequence[OnAnswer]], *, last_token: int) -> None:
        """Expect the answers to requests that were put to the core before a re-execution."""
        self.askers |= {token: list(waiting) for token, waiting in askers.items()}
        self.last_token = last_token

    def _token(self, asker: OnAnswer) -> int:
        self.last_token += 1
        self.askers[self.last_token] = [asker]
        return self.last_token

    def answer_again(self, run: RunId, client: int | None, asker: OnAnswer) -> None:
        """Answer a request that was repeated with its key. `client`: the one that the run is tied
        to."""
        if client is not None:
            self.feed(e.ClientBack(trio.current_time(), run, client))
        live = self.catalogue.live.get(run)
        if live is not None and live.run.admit_token is not None:
            self.askers[live.run.admit_token].append(asker)
        else:
            asker(c.Known(run))
