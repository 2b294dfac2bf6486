"""The pure core as the judge: it is asked everything that the daemon was asked, in the daemon's
order, and told what became of it.

A run's number says when it was asked for, its times when it started and ended. Whatever depends on
what nobody outside can know, such as what was in flight when the daemon died, is not judged.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.machine import Machine
from sfad.core.state.access import Peer
from sfad.core.state.account import Use
from sfad.core.state.policy import Policy
from sfad.core.state.run import run_number
from sfad.core.state.vocabulary import Timer
from sfad.protocol.types import Bound, RunId, RunInfo, Status
from tests.core.asking import asked_for
from tests.crash.scenario import USER
from tests.crash.victim import Diary

CLOSE = 0.5
"""Seconds around an end, or a death of the daemon, in which the model does not know which runs had
a place."""

_UNSURE = {"enabled", "permission"}
"""Verdicts that mean that the caller was about to end."""


class Judge:
    """Replays a history. `wrong` has what the core would not have done."""

    def __init__(
        self, policy: Policy, runs: Iterable[RunInfo], diary: Diary, deaths: list[datetime]
    ) -> None:
        self.wrong: list[str] = []
        self.judged: Counter[str] = Counter()
        """How many verdicts and ends were compared, and how many could not be."""
        self._machine = Machine(policy)
        self._runs = {run.id: run for run in runs}
        self._diary = diary
        self._outcomes: dict[RunId, Status] = {}
        self._unsure: set[RunId] = set()
        self._token = 0
        ends = [
            run.ended_at
            for run in self._runs.values()
            if run.ended_at is not None and run.parent_id is None
        ]
        self._busy = sorted([*ends, *deaths])
        self._zero = min((run.created_at for run in self._runs.values()), default=None)

    def judge(self) -> None:
        """Replay the whole history in order."""
        happened = []
        for run in self._runs.values():
            number = run_number(run.id)
            happened.append((run.created_at, 0, number, run, self._asked))
            if run.started_at is not None:
                happened.append((run.started_at, 1, number, run, self._started))
            if run.ended_at is not None and not run.status.rejected:
                # children before parents
                happened.append((run.ended_at, 2, -number, run, self._ended))
        for at, _, _, run, tell in sorted(happened, key=lambda one: one[:3]):
            tell(run, self._seconds(at))
        for run in self._runs.values():
            self._compare(run)

    def _seconds(self, at: datetime) -> float:
        assert self._zero is not None
        return (at - self._zero).total_seconds()

    def _feed(self, event: e.Event) -> list[c.Command]:
        done = self._machine.handle(event).commands
        self._outcomes |= {
            command.run.id: command.run.status for command in done if isinstance(command, c.Retire)
        }
        return done

    # ---- verdicts

    def _asked(self, run: RunInfo, at: float) -> None:
        self._machine.number_from(run_number(run.id))
        self._token += 1
        labels = run.labels
        asked = asked_for(
            argv=tuple(run.argv),
            name=run.name,
            attempts=int(labels.get("attempts", "1")),
            queue=labels.get("queue") != "False",
            max_depth=_bound(labels.get("max_depth")),
            max_descendants=_bound(labels.get("max_descendants")),
        )
        peer = Peer(os.getuid(), USER, run=run.parent_id)
        done = self._feed(e.SpawnRequested(at, self._token, peer, asked))
        answers = [command.answer for command in done if isinstance(command, c.AnswerRequest)]
        refused = next(
            (answer.refusal.kind.value for answer in answers if isinstance(answer, c.SpawnRefused)),
            "",
        )
        actual = run.status.removeprefix("rejected_") if run.status.rejected else ""
        if refused != actual and (
            self._may_differ(run, refused, actual) or run.parent_id in self._unsure
        ):
            self.judged["verdicts that cannot be known"] += 1
        elif refused != actual:
            told = f"the daemon said {actual or 'yes'}, the core {refused or 'yes'}"
            self.wrong.append(f"{run.id} ({run.name} in {run.parent_id}): {told}")
        else:
            self.judged["verdicts alike"] += 1
        if refused != actual:
            self._unsure.add(run.id)
        if not refused and actual:
            self._feed(e.CommitFailed(at, (run.id,), "the daemon refused it"))
        elif not refused:
            self._feed(e.Committed(at, (run.id,)))

    def _may_differ(self, run: RunInfo, refused: str, actual: str) -> bool:
        if {refused, actual} & _UNSURE:
            return True
        return "concurrency" in {refused, actual} and any(
            abs((run.created_at - at).total_seconds()) < CLOSE for at in self._busy
        )

    # ---- lives

    def _started(self, run: RunInfo, at: float) -> None:
        mine = self._machine.tree.get(run.id)
        if mine is None:
            return
        if mine.status is Status.STARTING:
            self._feed(e.LaunchSucceeded(at, run.id, run_number(run.id)))
        elif mine.status is Status.QUEUED and not any(
            abs(self._seconds(death) - at) < CLOSE for death in self._busy
        ):
            self.wrong.append(f"{run.id} was started, and all places were taken")

    def _ended(self, run: RunInfo, at: float) -> None:
        mine = self._machine.tree.get(run.id)
        kind = run.reason.kind if run.reason is not None else "exit"
        if mine is None or kind == "ancestor":
            return
        if (
            mine.attempt == 0
            or mine.status is Status.STARTING
            or kind in {"daemon", "ledger", "client"}
            or run.started_at is None
        ):
            if kind == "launch":
                self._feed(e.LaunchFailed(at, run.id, 2, "no such command"))
                return
            if run.status is Status.LOST:
                self._feed(e.MainExited(at, run.id, None, None))
            elif kind != "stop":
                self._unsure.add(run.id)
        if (
            kind == "stop"
            or run.id in self._unsure
            or (run.reason is not None and run.reason.limit_kind == "time")
        ):
            self._stop(run, at)
        elif kind == "limit":
            self._feed(e.UseSeen(at, run.id, "stream", Use(turns=1000)))
        else:
            self._attempts(run, at)
            self._feed(e.MainExited(at, run.id, run.exit_code, run.signal))
        if self._machine.tree.get(run.id) is not None:
            self._feed(e.Emptied(at, run.id))

    def _stop(self, run: RunInfo, at: float) -> None:
        if run.status is not Status.CANCELLED:
            self._unsure.add(run.id)
        self._token += 1
        self._feed(e.StopRequested(at, self._token, Peer(os.getuid(), USER), (run.id,)))

    def _attempts(self, run: RunInfo, at: float) -> None:
        """Tell the core of the attempts before the last one."""
        for number in range(1, run.attempts):
            self._feed(e.MainExited(at, run.id, self._diary.codes.get((run.id, number), 1)))
            self._feed(e.Emptied(at, run.id))
            self._feed(e.TimerFired(at, run.id, Timer.RETRY))
            self._feed(e.LaunchSucceeded(at, run.id, run_number(run.id)))

    def _compare(self, run: RunInfo) -> None:
        if run.status.rejected:
            return
        mine = self._outcomes.get(run.id)
        if run.id in self._unsure or (run.reason is not None and run.reason.kind == "limit"):
            self.judged["ends that cannot be known"] += 1
        elif mine is not run.status:
            why = (
                f"{run.reason.kind}: {run.reason.message}"
                if run.reason is not None
                else "no reason"
            )
            self.wrong.append(f"{run.id} ended as {run.status} ({why}), the core says {mine}")
        else:
            self.judged["ends alike"] += 1


def _bound(label: str | None) -> Bound | None:
    return Bound(value=int(label), source="--test") if label is not None else None
