"""Clients that send random requests and remember the answers."""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from random import Random
from typing import Any

from sfactl.connecting.connection import Client, DaemonError, Unreachable
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, RunId, RunInfo
from tests.crash.promises import all_runs
from tests.crash.scenario import Player
from tests.crash.victim import Agents
from tests.harness import Daemon

from .agents import ROOT, argument, environment

DEPTH = 4
"""Generations that an agent may ask for. The guard allows a root and three more."""

CROWD = 14
"""Live runs above which no client starts another."""

EXPECTED = {ErrorCode.WRONG_STATE, ErrorCode.NO_SUCH_RUN, ErrorCode.UNAVAILABLE}


class Book:
    """The answers to all clients."""

    def __init__(self) -> None:
        self.acknowledged: set[RunId] = set()
        self.finals: dict[RunId, RunInfo] = {}
        self.refusals: dict[RunId, str] = {}
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.ended = threading.Event()


class Worker(threading.Thread):
    """One client."""

    def __init__(self, daemon: Daemon, agents: Agents, book: Book, random: Random) -> None:
        super().__init__(daemon=True)
        self._daemon_ = daemon
        self._agents = agents
        self._book = book
        self._random = random

    def run(self) -> None:
        """Send requests until the soak ends."""
        try:
            player = Player(self._daemon_, self._agents, self._book)
            with player.client:
                while not self._book.ended.is_set():
                    self._act(player)
                    self._book.ended.wait(self._random.uniform(0, 0.4))
        except Exception as error:  # noqa: BLE001 - it is told at the end
            if not self._book.ended.is_set():
                self._book.wrong.append(f"a client: {type(error).__name__}: {error}")

    def _act(self, player: Player) -> None:
        what = self._random.choice(
            ("spawn",) * 5
            + ("stop", "stop", "pause", "resume", "resume", "approve", "wait", "wait", "list")
        )
        self._book.done[what] += 1
        try:
            if what == "spawn":
                self._spawn(player)
            elif what == "list":
                player.call(m.List(id=player.client.next_id()), m.RunList)
            elif self._book.acknowledged:
                self._steer(
                    player, what, self._random.choice(sorted(self._book.acknowledged)[-12:])
                )
        except DaemonError as error:
            self._book.done[f"answered {error.error.value}"] += 1
            if error.error not in EXPECTED:
                self._book.wrong.append(f"{what}: {error.error}: {error}")

    def _spawn(self, player: Player) -> None:
        live = player.call(m.List(id=player.client.next_id(), rows=0), m.RunList).runs
        if len(live) > CROWD:
            return
        argv, options = argument(self._random, self._agents, DEPTH)
        request = m.Spawn(
            id=player.client.next_id(),
            argv=[os.fsencode(word) for word in argv],
            cwd=os.fsencode(ROOT),
            env=environment(),
            key=secrets.token_hex(8),
            **options,
        )
        reply = player.call(request, m.Reply)
        if isinstance(reply, m.RunReply):
            self._book.acknowledged.add(reply.run.id)
        elif isinstance(reply, m.Refused):
            self._book.done[f"refused {reply.refused.kind.value}"] += 1
            if reply.run is not None:
                self._book.refusals[reply.run] = f"rejected_{reply.refused.kind.value}"

    def _steer(self, player: Player, what: str, run: RunId) -> None:
        number = player.client.next_id()
        if what == "stop":
            stop = m.Stop(id=number, runs=[run], grace=self._random.choice((None, 0.0, 0.3)))
            stopped = player.call(stop, m.Stopped)
            if stopped.survivors:
                self._book.wrong.append(f"{stopped} survived")
        elif what == "wait":
            final = player.call(
                m.Wait(id=number, run=run, timeout=self._random.uniform(0, 2)), m.RunReply
            ).run
            if final.status.terminal:
                self._book.finals[run] = final
        else:
            request: Any = {"pause": m.Pause, "resume": m.Resume, "approve": m.Approve}[what](
                id=number, run=run
            )
            player.attempt(request, m.RunReply)


def final_list(client: Client) -> list[RunInfo]:
    """Return all runs that the daemon lists."""
    try:
        return list(all_runs(client).values())
    except Unreachable as error:
        raise AssertionError("the daemon does not answer at the end") from error
