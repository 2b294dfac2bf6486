"""Real users of one daemon ask each verb: another user's run looks as if it did not exist."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.core.state.access import TABLE
from sfad.features.advice.messages import Recommend, Recommended
from sfad.features.metrics.messages import Metrics, MetricsText
from sfad.protocol import messages as m
from sfad.protocol.types import Action, ErrorCode, Limit, LimitKind
from tests.all_messages import REQUESTS
from tests.harness import Daemon, ended, running, spawn, stopped, wait_until
from tests.users import FIRST, SECOND, THIRD, as_user, asked_as, needs_root

pytestmark = needs_root

ADMINS = 61900
CREW = (61004, 61005)
CONFIG = f"""
[access]
users = "all"
admin_group = {ADMINS}
[quotas]
trees_per_user = 2
trees = 4
spawns_per_hour = 20
[budgets.users.{FIRST}]
daily_usd = 5
[budgets.users.{SECOND}]
daily_usd = 5
[budgets.teams.crew]
usd = 1
period = "day"
members = ["{CREW[0]}", "{CREW[1]}"]
"""
SUPER: list[dict[str, Any]] = [
    {"uid": 0},
    {"uid": THIRD, "groups": [ADMINS]},
    {"uid": THIRD, "gid": ADMINS},
]
"""Root; members of the admin group by a supplementary group and by their own."""

ABOUT_ONE: dict[str, dict[str, Any]] = {
    "get_files": {"name": "a" * 32},
    "limit": {"limits": [Limit(kind=LimitKind.TURNS, threshold=3, action=Action.WARN)]},
    "read_output": {"stream": "stdout"},
    "report": {"turns": 1},
    "reserve": {"model": "gpt-4o", "input_tokens": 1, "max_output_tokens": 1},
    "send": {"data": b"x"},
    "signal": {"signal": signal.SIGWINCH},
    "wait": {"timeout": 0},
}
"""The fields beside `run` of requests about one run, where there must be some."""

OF_ITS_USER = {"fetch_files", "get_files"}
"""The run's user alone may use them, because what they do is done as that user."""
OF_NO_OTHER = {"settle"}
"""It names a reservation."""


@pytest.fixture
def daemon(everyones: Daemon) -> Iterator[Daemon]:
    yield everyones
    with everyones.client() as client:
        stopped(client, everything=True, grace=0)


def start(daemon: Daemon, uid: int, *argv: str, **options: Any) -> str:
    """Return the id of a run that a user has started, or the refusal's rule."""

    def request() -> str:
        with Client(daemon.socket) as client:
            reply = spawn(
                client, argv or ("sleep", "300"), cwd=b"/", env=[b"PATH=/usr/bin:/bin"], **options
            )
            if isinstance(reply, m.Refused):
                return reply.refused.kind.value
            assert isinstance(reply, m.RunReply), reply
            return reply.run.id

    return as_user(uid, request)


def about(run: str) -> dict[str, m.Request]:
    """Return a request of each kind that names one run and that a person may send."""
    kinds: dict[str, Any] = {m.tag(kind): kind for kind in REQUESTS}
    return {
        verb: kinds[verb](id=0, run=run, **ABOUT_ONE.get(verb, {}))
        for verb, access in TABLE.items()
        if access.scope == "one" and access.outside == "anyone" and verb not in OF_NO_OTHER
    }


def seen(reply: m.Reply, run: str) -> tuple[Any, ...]:
    assert isinstance(reply, m.Error), reply
    return reply.code, reply.message.replace(f"'{run}'", "'RUN'")


def test_every_verb_treats_another_users_run_as_an_unknown_one(daemon: Daemon) -> None:
    live = start(daemon, SECOND, stdin="pipe")
    over = start(daemon, SECOND, "true")
    with daemon.client() as client:
        ended(client, over)
        reserved = client.call(
            m.Reserve(id=client.next_id(), run=live, **ABOUT_ONE["reserve"]), m.Reserved
        ).reservation
    assert reserved is not None
    unknown = "zzz9"
    for run in (live, over):
        expected = asked_as(daemon.socket, list(about(unknown).values()), uid=FIRST)
        answers = asked_as(daemon.socket, list(about(run).values()), uid=FIRST)
        for verb, wanted, found in zip(about(run), expected, answers, strict=True):
            assert seen(found, run) == seen(wanted, unknown), verb
            assert seen(found, run)[0] is ErrorCode.NO_SUCH_RUN, verb
    many: list[m.Request] = [
        m.Stop(id=0, runs=[live]),
        m.List(id=0, root=live),
        m.Events(id=0, runs=[live]),
    ]
    many += [m.WatchRuns(id=0, root=live), m.Stop(id=0, runs=[live], sessions=True)]
    for reply in asked_as(daemon.socket, many, uid=FIRST):
        assert seen(reply, live)[0] is ErrorCode.NO_SUCH_RUN
    (selected,) = asked_as(
        daemon.socket, [m.Select(id=0, verb="stop", runs=[live, over])], uid=FIRST
    )
    assert isinstance(selected, m.Selected)
    assert (selected.runs, [one.code for one in selected.failed]) == (
        [],
        [ErrorCode.NO_SUCH_RUN] * 2,
    )
    settle: list[m.Request] = [
        m.Settle(id=0, reservation=name, input_tokens=1, output_tokens=1)
        for name in (reserved, "none")
    ]
    settled = asked_as(daemon.socket, settle, uid=FIRST)
    assert seen(settled[0], reserved) == seen(settled[1], "none")
    with daemon.client() as client:
        assert (
            client.call(m.Info(id=client.next_id(), run=live), m.RunReply).run.status == "running"
        )


def test_root_and_the_admin_group_do_everything_with_all_runs(daemon: Daemon) -> None:
    live = start(daemon, SECOND, stdin="pipe")
    for who in SUPER:
        replies = asked_as(daemon.socket, list(about(live).values()), **who)
        for verb, reply in zip(about(live), replies, strict=True):
            if verb in OF_ITS_USER:
                assert isinstance(reply, m.Error)
                assert reply.code is ErrorCode.NOT_PERMITTED, (verb, who)
            elif isinstance(reply, m.Error):
                assert reply.code not in {ErrorCode.NO_SUCH_RUN, ErrorCode.NOT_PERMITTED}, (
                    verb,
                    who,
                )
        with daemon.client() as client:
            wait_until(
                lambda: (
                    client.call(m.Info(id=client.next_id(), run=live), m.RunReply).run.status
                    == "running"
                ),
                "resumed",
            )
        config, metrics = asked_as(daemon.socket, [m.Config(id=0), Metrics(id=0)], **who)
        assert isinstance(config, m.ConfigReply)
        assert isinstance(metrics, MetricsText)
    (done,) = asked_as(daemon.socket, [m.Stop(id=0, runs=[live], grace=0)], **SUPER[1])
    assert isinstance(done, m.Stopped)
    refused = asked_as(daemon.socket, [m.Config(id=0), Metrics(id=0), m.Reload(id=0)], uid=THIRD)
    assert {seen(reply, "")[0] for reply in refused} == {ErrorCode.NOT_PERMITTED}


def test_what_an_administrator_does_to_runs_that_are_not_named_is_done_to_own_ones(
    daemon: Daemon,
) -> None:
    """`stop --all` and `prune` of one person must not end the work of others, or delete it."""
    over = start(daemon, SECOND, "true")
    with daemon.client() as client:
        ended(client, over)
    live = start(daemon, SECOND, name="work")
    for who in SUPER[1:]:
        own = start(daemon, THIRD, name="work")
        asks: list[m.Request] = [
            m.Select(id=0, verb="stop", name=["work"]),
            m.Prune(id=0, keep=0),
            m.Stop(id=0, everything=True),
        ]
        chosen, pruned, done = asked_as(daemon.socket, asks, **who)
        assert isinstance(chosen, m.Selected)
        assert chosen.runs == [own]
        assert isinstance(pruned, m.Pruned)
        assert isinstance(done, m.Stopped)
        assert done.stopped == [own]
    with daemon.client() as client:
        for run, status in ((live, "running"), (over, "completed")):
            assert (
                client.call(m.Info(id=client.next_id(), run=run), m.RunReply).run.status == status
            )


def test_lists_names_and_counts_are_a_users_own(daemon: Daemon) -> None:
    """Both use the same names and labels."""
    own: dict[int, set[str]] = {}
    for uid in (FIRST, SECOND):
        options = {"name": "worker", "labels": {"team": "x"}}
        live, over = start(daemon, uid, **options), start(daemon, uid, "true", **options)
        own[uid] = {live, over}
        with daemon.client() as client:
            ended(client, over)
        unsorted: list[m.Request] = [
            m.List(id=0, rows=1000, labels={"team": "x"}),
            m.Info(id=0, run="worker"),
            m.DaemonInfo(id=0),
            m.Events(id=0, rows=1000),
            m.Summarise(id=0, since=0.0, name="worker"),
            m.Select(id=0, verb="stop", everything=True),
            Recommend(id=0, name="worker"),
        ]
        listed, info, status, events, summary, selected, advice = asked_as(
            daemon.socket, unsorted, uid=uid
        )
        assert isinstance(listed, m.RunList)
        assert {run.id for run in listed.runs} == own[uid]
        assert isinstance(info, m.RunReply)
        assert info.run.id == live, "a name means an own run"
        assert isinstance(status, m.DaemonStatus)
        assert (status.live, status.queued, status.admitted, status.connections) == (
            1,
            0,
            None,
            None,
        )
        assert {quota.key: quota.used for quota in status.quotas}["quotas.trees_per_user"] == 1
        assert [budget.name for budget in status.budgets] == [str(uid)]
        assert isinstance(events, m.EventPage)
        assert own[uid] <= {event.run_id for event in events.events}
        with daemon.client() as client:
            users = {
                run.id: run.user
                for run in client.call(m.List(id=client.next_id(), rows=1000), m.RunList).runs
            }
        assert {users[event.run_id or ""] for event in events.events} == {str(uid)}
        assert isinstance(summary, m.Summarised)
        assert summary.summary.runs == 2
        assert isinstance(selected, m.Selected)
        assert selected.runs == [live]
        assert isinstance(advice, Recommended)
        assert {one.ended for one in advice.advice} == {1}
    (listed,) = asked_as(daemon.socket, [m.List(id=0, rows=1000, labels={"team": "x"})], **SUPER[1])
    assert isinstance(listed, m.RunList)
    assert {run.id for run in listed.runs} == own[FIRST] | own[SECOND]
    (stop,) = asked_as(daemon.socket, [m.Stop(id=0, everything=True, grace=0)], uid=FIRST)
    assert isinstance(stop, m.Stopped)
    assert set(stop.stopped) <= own[FIRST]
    (pruned,) = asked_as(daemon.socket, [m.Prune(id=0)], uid=FIRST)
    assert isinstance(pruned, m.Pruned)
    left = asked_as(daemon.socket, [m.List(id=0, rows=1000, labels={"team": "x"})], uid=0)[0]
    assert isinstance(left, m.RunList)
    assert {run.id for run in left.runs} == own[SECOND]


def test_a_feed_has_own_events_only(daemon: Daemon) -> None:
    with daemon.client() as root:
        reached = root.call(m.Events(id=root.next_id(), rows=1), m.EventPage).reached
    other = start(daemon, SECOND, "true")
    with daemon.client() as client:
        ended(client, other)

    def watch() -> tuple[str, set[str | None]]:
        """Follow from before the other user's run; while that goes on, both start runs."""
        with Client(daemon.socket) as client:
            client.send(m.Events(id=client.next_id(), after=reached, rows=1000, follow=True))
            own = spawn(
                client,
                ["sh", "-c", "read line"],
                cwd=b"/",
                env=[b"PATH=/usr/bin:/bin"],
                stdin="pipe",
            )
            assert isinstance(own, m.RunReply)
            return own.run.id, followed(client, own.run.id)

    own, runs = as_user(FIRST, watch)
    assert runs == {own}


def followed(client: Client, own: str) -> set[str | None]:
    """Return the runs of the events that are pushed until the run `own`, whose end is asked for, is
    over."""
    found: set[str | None] = set()
    client.send(m.Send(id=client.next_id(), run=own, data=b"", eof=True))
    while True:
        for answer in client.arrived():
            pushed = answer.reply
            events = [*pushed.events] if isinstance(pushed, m.EventPage) else []
            events += [pushed.event] if isinstance(pushed, m.EventPush) else []
            found |= {event.run_id for event in events}
            if any(event.run_id == own and event.type == "run_failed" for event in events):
                return found


def test_a_team_shares_a_budget_across_users(daemon: Daemon) -> None:
    live = start(daemon, CREW[0])
    with daemon.client() as client:
        client.call(m.Report(id=client.next_id(), run=live, cost_usd=1.5), m.RunReply)
    assert [start(daemon, uid, "true") for uid in CREW] == ["budget", "budget"]
    assert start(daemon, THIRD, "true") != "budget"

    def cost(uid: int) -> float | None:
        (status,) = asked_as(daemon.socket, [m.DaemonInfo(id=0)], uid=uid)
        assert isinstance(status, m.DaemonStatus)
        return status.cost_usd

    assert [cost(uid) for uid in CREW] == [1.5, 0]
    assert (cost(0) or 0) >= 1.5


def test_no_user_starves_another(daemon: Daemon) -> None:
    """One user takes all slots that one may have, and queues more with a high priority."""
    greedy = [start(daemon, FIRST, priority=9) for _ in range(4)]
    busy = [start(daemon, SECOND) for _ in range(3)]
    late = start(daemon, THIRD)
    with daemon.client() as client:

        def statuses(runs: list[str]) -> list[str]:
            return [
                client.call(m.Info(id=client.next_id(), run=run), m.RunReply).run.status.value
                for run in runs
            ]

        assert statuses(greedy)[2:] + statuses([busy[2], late]) == ["queued"] * 4
        stopped(client, busy[0], grace=0)
        wait_until(lambda: statuses([late]) == ["running"], "the user without a tree is next")
        assert statuses([*greedy[2:], busy[2]]) == ["queued"] * 3
        stopped(client, busy[1], grace=0)
        wait_until(lambda: statuses([busy[2]]) == ["running"], "then the one with fewer trees")
        assert statuses(greedy[2:]) == ["queued"] * 2


UNTIL_TOLD = (
    'read line; cp "$1/new" "$1/sfad.toml"; kill -HUP "$2"; while [ ! -e "$1/go/on" ]; do sleep '
    "0.05; done"
)


def test_who_leaves_the_admin_group_is_told_no_more(place: Path) -> None:
    """A reload takes the rights from connections, waiting requests and feeds that are open."""
    directory = place / "left"
    (directory / "go").mkdir(parents=True)
    (directory / "go").chmod(0o777)
    directory.chmod(0o755)
    with running(directory, config=CONFIG, mode="cgroup") as daemon, daemon.client() as root:
        (directory / "new").write_text(
            daemon.config.read_text().replace(f"admin_group = {ADMINS}", "")
        )
        words = ["sh", "-c", UNTIL_TOLD, "sh", str(directory), str(daemon.pid)]
        roots = spawn(root, words, stdin="pipe")
        assert isinstance(roots, m.RunReply), roots

        def watch() -> tuple[set[str | None], m.Reply, m.Reply]:
            with Client(daemon.socket) as follower, Client(daemon.socket) as client:
                run = client.call(m.Info(id=client.next_id(), run=roots.run.id), m.RunReply).run
                client.send(m.Wait(id=client.next_id(), run=run.id))
                follower.call(m.Events(id=follower.next_id(), rows=1, follow=True), m.EventPage)
                with Client(daemon.socket) as other:
                    other.call(m.Send(id=other.next_id(), run=run.id, data=b"go\n"), m.Done)
                    wait_until(
                        lambda: isinstance(reply(other, m.Config(id=0)), m.Error), "the reload"
                    )
                    gone = reply(other, m.Info(id=0, run=run.id))
                    (directory / "go" / "on").touch()
                    (waited,) = (answer.reply for answer in client.arrived())
                    own = spawn(
                        other,
                        ["sh", "-c", "read line"],
                        cwd=b"/",
                        env=[b"PATH=/usr/bin:/bin"],
                        stdin="pipe",
                    )
                    assert isinstance(own, m.RunReply)
                    return followed(follower, own.run.id) - {own.run.id}, gone, waited

        runs, *replies = as_user(THIRD, watch, groups=[ADMINS])
        assert runs == set()
        for found in replies:
            assert seen(found, roots.run.id)[0] is ErrorCode.NO_SUCH_RUN


def reply(client: Client, request: m.Request) -> m.Reply:
    client.send(request)
    return next(answer.reply for answer in client.arrived())
