"""Clients that pass through as many effects of the daemon as possible in little time, and do not
mind that it dies meanwhile."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sfactl.connecting.connection import Client, DaemonError, Unreachable
from sfad.protocol import messages as m
from sfad.protocol.types import (
    Action,
    After,
    Claim,
    ErrorCode,
    Limit,
    LimitKind,
    RunId,
    RunInfo,
    Status,
)
from tests.harness import PATIENCE, PYTHON, Daemon, environment, strays, wait_until

from .victim import Agents

USER = pwd.getpwuid(os.getuid()).pw_name

CONFIG = f"""
[quotas]
trees = 7
spawns_per_hour = 1000
[stop]
grace = 3
[prices.m]
input_mtok = 3
output_mtok = 15
[budgets.users.{USER}]
daily_usd = 50
[gateway]
enabled = true
[gateway.upstreams.anthropic]
url = "{{url}}"
api = "anthropic"
"""
"""With the URL of a provider to be filled in."""

R = TypeVar("R", bound=m.Reply)

LOOK = 0.02
"""Seconds between two looks at what agents wrote down."""


def fork_away(seconds: int) -> str:
    """For a script: a double fork into a session of its own."""
    return f"( setsid sh -c 'sleep {seconds} & sleep {seconds}' & )"


class Told(Protocol):
    """What clients were told."""

    acknowledged: set[RunId]
    finals: dict[RunId, RunInfo]


class Player:
    """One client: it connects again and asks again what may be asked again."""

    def __init__(self, daemon: Daemon, agents: Agents, book: Told) -> None:
        self.agents = agents
        self.book = book
        self._daemon = daemon
        self.client = _patient(daemon)

    def call(self, request: m.Request, expected: type[R]) -> R:
        """The answer; the daemon may die several times before it comes."""
        for _ in range(5):
            try:
                return self.client.call(request, expected)
            except Unreachable:
                self.reconnect()
        raise AssertionError(f"{request} was never answered")

    def reconnect(self) -> None:
        """However long that takes: the machine is shared."""
        self.client.reconnect("the test gives up", patience=PATIENCE)

    def spawn(self, label: str, script: str | None, **options: Any) -> m.Reply:
        """Asks for an agent, for another command (`script` is `None`), or is refused."""
        request = m.Spawn(
            id=self.client.next_id(),
            argv=[os.fsencode(word) for word in self.agents.argv(label, script)]
            if script is not None
            else [b"/nowhere"],
            cwd=b"/",
            env=environment(),
            name=label,
            key=secrets.token_hex(8),
            **options,
        )
        reply = self.call(request, m.Reply)
        if isinstance(reply, m.RunReply):
            self.book.acknowledged.add(reply.run.id)
        assert isinstance(reply, m.RunReply | m.Refused), reply
        return reply

    def start(self, label: str, script: str | None, **options: Any) -> RunId:
        """Asks for a run that is to be had."""
        reply = self.spawn(label, script, **options)
        assert isinstance(reply, m.RunReply), reply
        return reply.run.id

    def info(self, run: RunId) -> RunInfo:
        """As it is now."""
        return self.call(m.Info(id=self.client.next_id(), run=run), m.RunReply).run

    def wait(self, run: RunId, *, tie: bool = False) -> RunInfo:
        """Until it has ended."""
        final = self.call(
            m.Wait(id=self.client.next_id(), run=run, timeout=PATIENCE, tie=tie), m.RunReply
        ).run
        assert final.status.terminal, f"{run} is still {final.status} after {PATIENCE:g} s"
        self.book.finals[run] = final
        return final

    def stop(self, run: RunId, **options: Any) -> None:
        """Until nothing of it is alive, which is looked at."""
        stopped = self.call(m.Stop(id=self.client.next_id(), runs=[run], **options), m.Stopped)
        assert not stopped.survivors, stopped
        left = [
            process.pid
            for process in strays(self._daemon.instance)
            if _cookie(process).split(":")[1:2] == [run]
        ]
        assert not left, f"{run} was stopped, and {left} are alive"
        self.wait(run)

    def until(self, run: RunId, condition: Callable[[RunInfo], bool]) -> bool:
        """Whether it comes to be so before the run ends."""
        until = time.monotonic() + PATIENCE
        while not condition(info := self.info(run)):
            if info.status.terminal:
                return False
            assert time.monotonic() < until, f"{run} stays {info.status}"
            time.sleep(LOOK)
        return True

    def until_renewed(self) -> None:
        """Wait until another daemon serves, or the same one after a re-execution."""
        wait_until(
            lambda: self._daemon.log.read_text().count('"message":"serving"') > 1,
            "there is another daemon",
        )

    def until_begun(self, run: RunId) -> bool:
        """Whether the agent has begun before the run ends."""
        return self.until(
            run, lambda info: any(one.number == info.attempts for one in self.agents.read().of(run))
        )

    def attempt(self, request: m.Request, expected: type[R]) -> bool:
        """What is not repeated: whether it was done, as far as one knows."""
        try:
            self.client.call(request, expected)
        except Unreachable:
            self.reconnect()
            return False
        except DaemonError as error:
            if error.error not in {ErrorCode.WRONG_STATE, ErrorCode.NO_SUCH_RUN}:
                raise
        return True


def _patient(daemon: Daemon) -> Client:
    """A connection: there may be no daemon just now."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            client = daemon.client()
        except Unreachable:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK)
        else:
            client.be_patient(PATIENCE)
            return client


def _cookie(process: Any) -> str:
    try:
        return str(process.environ().get("SFA_COOKIE", ""))
    except Exception:  # noqa: BLE001 - gone
        return ""


class Book:
    """What the daemon has told."""

    def __init__(self) -> None:
        self.acknowledged: set[RunId] = set()
        self.finals: dict[RunId, RunInfo] = {}


Story = Callable[[Player], None]


class Scenario:
    """Stories, all at once, each with a client of its own."""

    def __init__(self, daemon: Daemon, agents: Agents, stories: Sequence[Story]) -> None:
        self.book = Book()
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._tell, args=(daemon, agents, story), daemon=True)
            for story in stories
        ]
        for thread in self._threads:
            thread.start()

    @property
    def going_on(self) -> bool:
        """Whether any is not over."""
        return any(thread.is_alive() for thread in self._threads)

    def _tell(self, daemon: Daemon, agents: Agents, story: Story) -> None:
        try:
            player = Player(daemon, agents, self.book)
            with player.client:
                story(player)
        except BaseException as error:  # noqa: BLE001 - it is told at the end
            at = traceback.extract_tb(error.__traceback__)[-1]
            self.wrong.append(
                f"{story.__name__}: {type(error).__name__}: "
                f"{error} (line {at.lineno} of {at.filename.split('/')[-1]})"
            )


# ---- the stories


def seven(player: Player) -> None:
    """Ends by itself, while its client waits for it."""
    run = player.start("seven", "sleep 0.1; end 7", tied=True)
    player.wait(run, tie=True)


def short(player: Player) -> None:
    """End before the daemon looks, and leave a process behind."""
    player.wait(player.start("short", "sleep 60 & end 0"))


def missing(player: Player) -> None:
    """Is no command; nobody knows that if the daemon dies while it is being started."""
    final = player.wait(player.start("missing", None))
    assert final.status in {Status.FAILED, Status.LOST}, final


def stubborn(player: Player) -> None:
    """Ignores SIGTERM, and so does its child."""
    run = player.start(
        "stubborn",
        "trap '' TERM; (while :; do sleep 1; done) & while :; do sleep 1; done",
        grace=0.3,
    )
    player.until_begun(run)
    player.stop(run)


def again(player: Player) -> None:
    """Fails the first time."""
    player.wait(
        player.start("again", '[ "$SFA_ATTEMPT" = 2 ] && end 0; end 1', attempts=2, retry_delay=0.1)
    )


def family(player: Player) -> None:
    """Asks for a child from inside, and for itself, which is refused."""
    kid = player.agents.sfactl(
        "run", "--quiet", "--name", "kid", "--", player.agents.inside("kid", "sleep 0.1; end 5")
    )
    loop = player.agents.sfactl("run", "--quiet", "--name", "family", "--", "true")
    player.wait(player.start("family", f"{kid}; code=$?; {loop} 2>/dev/null; end $code"))


def refused(player: Player) -> None:
    """Would call itself in a circle, as it says itself."""
    reply = player.spawn("refused", "end 0", claim=Claim(names=["refused"], depth=1))
    assert isinstance(reply, m.Refused), reply


def standing(player: Player) -> None:
    """Is paused and resumed."""
    run = player.start("standing", f"{fork_away(60)}; sleep 60; end 0")
    if player.until_begun(run):
        player.attempt(m.Pause(id=player.client.next_id(), run=run), m.RunReply)
        player.until(run, lambda info: info.status is not Status.STOPPING)
        player.attempt(m.Resume(id=player.client.next_id(), run=run), m.RunReply)
    player.stop(run)


def asking(player: Player) -> None:
    """Uses more than it may, is held, and then may."""
    limit = Limit(kind=LimitKind.TURNS, threshold=2, action=Action.REQUEST_INCREASE, source="test")
    turns = """for i in 1 2 3; do echo '{"type": "turn", "tool": "Bash"}'; done; sleep 0.5; end 3"""
    run = player.start("asking", turns, limits=[limit], meter="jsonl")
    while player.until(run, lambda info: info.status is Status.PAUSED):
        if player.attempt(m.Approve(id=player.client.next_id(), run=run), m.RunReply):
            break
    player.wait(run)


def spending(player: Player) -> None:
    """Says what it uses."""
    run = player.start("spending", "sleep 0.4; end 0")
    if player.until_begun(run):
        number = player.client.next_id
        player.attempt(
            m.Reserve(id=number(), run=run, model="m", input_tokens=1000, max_output_tokens=1000),
            m.Reserved,
        )
        player.attempt(m.Report(id=number(), run=run, turns=1, cost_usd=0.25), m.RunReply)
        try:
            held = player.client.call(
                m.Reserve(
                    id=number(), run=run, model="m", input_tokens=1000, max_output_tokens=1000
                ),
                m.Reserved,
            )
        except Unreachable:
            player.reconnect()
        except DaemonError as error:
            if error.error is not ErrorCode.WRONG_STATE:
                raise
        else:
            assert held.reservation is not None, held
            settle = m.Settle(
                id=number(), reservation=held.reservation, input_tokens=10, output_tokens=10
            )
            player.attempt(settle, m.RunReply)
    player.wait(run)


TURN = '{"type": "turn", "tool": "Bash"}'


def metered(player: Player) -> None:
    """Prints what it uses, ends at once, and is counted to its end, once, whichever daemon reads
    it."""
    final = player.wait(
        player.start(
            "metered",
            f"echo '{TURN}'; sleep 0.2; echo '{TURN}'; echo '{TURN}'; end 0",
            meter="jsonl",
        )
    )
    used = final.usage.turns
    assert used == 3 or not player.agents.read().of(final.id), (
        f"{final.id} has used 3 turns, and is shown with {used}"
    )


def changed(player: Player) -> None:
    """Is given another limit, which counts from then on; what it is called and labelled stays."""
    run = player.start(
        "changed",
        "sleep 60; end 0",
        labels={"night": "5"},
        limits=[Limit(kind=LimitKind.TURNS, threshold=5)],
    )
    if player.until_begun(run):
        more = Limit(kind=LimitKind.TURNS, threshold=9, source="test")
        told = player.attempt(
            m.ChangeLimits(id=player.client.next_id(), run=run, limits=[more]), m.RunReply
        )
        info = player.info(run)
        thresholds = [state.threshold for state in info.limits if state.kind is LimitKind.TURNS]
        assert info.labels == {"night": "5"}
        assert thresholds == [9] or (not told and thresholds == [5]), thresholds
    player.stop(run)
    player.attempt(m.Prune(id=player.client.next_id(), keep=100), m.Pruned)


def later(player: Player) -> None:
    """Waits for a place behind all others, with what it takes to start it in the spool."""
    player.wait(player.start("later", "end 0", priority=-1, attempts=2))


def following(player: Player) -> None:
    """Starts when another has ended; and a third only if that has completed, whichever daemon hears
    of it."""
    first = player.start("first", "sleep 0.3; end 0")
    then = player.start("then", "end 0", after=[After(run=first)])
    try:
        needs = player.start("needs", "end 0", after=[After(run=first, ok=True)])
    except DaemonError as error:
        if f"run {first} ended as {player.wait(first).status}" not in str(error):
            raise
    else:
        over, told = player.wait(first), player.wait(needs)
        cancelled = told.reason is not None and told.reason.kind == "after"
        # a daemon that dies before the admission is on record fails the run
        never_committed = (
            told.status is Status.FAILED
            and told.reason is not None
            and told.reason.kind == "daemon"
        )
        assert cancelled == (over.status is not Status.COMPLETED and not never_committed), (
            over.status,
            told,
        )
        assert over.status is Status.COMPLETED or told.started_at is None, (over.status, told)
        assert not cancelled or told.status is Status.CANCELLED, told
    over, told = player.wait(first), player.wait(then)
    assert told.reason is None or told.reason.kind != "after", told
    if over.ended_at is not None and told.started_at is not None:
        assert told.started_at >= over.ended_at, (over, told)


def staying(player: Player) -> None:
    """Is there before and after."""
    run = player.start("staying", f"{fork_away(60)}; sleep 60; end 0")
    player.until_renewed()
    player.stop(run)


def standing_over(player: Player) -> None:
    """Is paused before, and resumed after."""
    run = player.start("over", "sleep 60; end 0")
    if player.until_begun(run):
        player.attempt(m.Pause(id=player.client.next_id(), run=run), m.RunReply)
    player.until_renewed()
    player.attempt(m.Resume(id=player.client.next_id(), run=run), m.RunReply)
    player.stop(run)


CALLER = Path(__file__).parents[1] / "e2e" / "caller.py"
CALLS = {"threads": 2, "calls": 2, "output": 100}


def calling(player: Player) -> None:
    """Calls a model. The gateway outlives the daemon, and so do the calls that are under way."""
    player.wait(
        player.start("calling", f"{PYTHON} '{CALLER}' '{json.dumps(CALLS)}' > /dev/null; end $?")
    )


STORIES: tuple[Story, ...] = (
    stubborn, standing, family, asking, again, spending, seven, short, missing, refused, metered,
    changed, later, following, calling,
)  # fmt: skip

RENEWED: tuple[Story, ...] = (
    staying, standing_over, stubborn, asking, again, seven, metered, changed, later, following,
    calling,
)  # fmt: skip
"""For a daemon that is renewed meanwhile."""


def everything(player: Player) -> None:
    """Stops what there is."""
    stopped = player.call(m.Stop(id=player.client.next_id(), everything=True), m.Stopped)
    assert not stopped.survivors, stopped


def left_running(player: Player) -> None:
    """Is there when the daemon is told to end."""
    player.until_begun(player.start("left", f"{fork_away(60)}; sleep 60; end 0"))
