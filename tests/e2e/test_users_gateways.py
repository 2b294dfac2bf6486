"""Root's daemon has a gateway for each user, as that user: real users, whose interpreter they could
not execute themselves.

Where the interpreter of these tests lies below a directory that only root can enter, as /root, a
gateway that imported or executed anything after it has become its user would fail here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import psutil
import pytest

from sfactl.connecting.connection import Client
from sfad.features.gateway.messages import FindCaller, GatewaySettings, ServeGateway
from sfad.host.probe import user_name
from sfad.processes import kernel
from sfad.protocol import messages as m
from sfad.protocol.requests.windows import SeenWindow
from sfad.protocol.types import Isolation, Limit, RunInfo, Tokens
from tests.harness import Daemon, alive, running, wait_until
from tests.users import (
    FIRST,
    SECOND,
    Failed,
    as_user,
    needs_root,
    open_directory,
    readable_by_all,
    waiting_as_user,
)

from .agents import limit
from .provider import Provider
from .test_gateway import CONFIG, post

pytestmark = needs_root

SECRET = "of-the-operator"  # noqa: S105 - no real one
NET = Isolation(network=False)
PATH = [b"PATH=/usr/bin:/bin"]
CALLER = """
import http.client, json, os, sys, urllib.parse
body, then, upstream, port = json.loads(sys.argv[1]), *sys.argv[2:]
place = f"127.0.0.1:{port}"
if not port:
    place = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"]).netloc
body["messages"] = [{"role": "user", "content": "x" * body.pop("padding")}]
def call():
    connection = http.client.HTTPConnection(place, timeout=120)
    try:
        path = f"/{upstream}/v1/messages"
        connection.request("POST", path, json.dumps(body), {"x-api-key": "own"})
        reply = connection.getresponse()
        text = reply.read().decode()
        refused = text[:300].replace("\\n", " ") if reply.status != 200 else ""
        print(reply.status, "message_stop" in text, refused, flush=True)
    except (http.client.HTTPException, OSError) as error:
        print("broken", type(error).__name__, flush=True)
    connection.close()
call()
for _ in sys.stdin if then else ():
    call()
"""
"""Makes a call, and another one for each line of its input if it is told to. Prints how each was
answered."""


@pytest.fixture
def everyones(provider: Provider) -> Iterator[Daemon]:
    """Start a daemon of all users. Of its two upstreams, one has a key of the operator's."""
    with open_directory() as place, serving(place, provider) as daemon:
        yield daemon


@contextmanager
def serving(place: Path, provider: Provider, wrap: Sequence[str] = ()) -> Iterator[Daemon]:
    (place / "key").write_text(SECRET)
    (place / "key").chmod(0o600)
    with running(place, config=config(provider, place / "key"), mode="cgroup", wrap=wrap) as daemon:
        yield daemon


def config(provider: Provider, key: Path) -> str:
    keyed = (
        f'\n[gateway.upstreams.keyed]\nurl = "{provider.url}"\napi = '
        f'"anthropic"\nkey_file = "{key}"\n'
    )
    return CONFIG.format(url=provider.url, enabled="true") + keyed + '[access]\nusers = "all"\n'


@contextmanager
def calling(
    daemon: Daemon,
    uid: int,
    *limits: Limit,
    port: int | None = None,
    upstream: str = "anthropic",
    then: bool = False,
    stall: bool = False,
    padding: int = 0,
    isolation: Isolation | None = None,
) -> Iterator[Call]:
    """Have a run of a user make a call. `port`: of the gateway, if not where its environment says;
    `then`: it may make others."""
    metadata = {"stall": stall, "tool": None}
    asked = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "stream": True,
        "metadata": metadata,
        "padding": padding,
    }
    words = [
        "/usr/bin/python3",
        "-c",
        CALLER,
        json.dumps(asked),
        "wait" if then else "",
        upstream,
        str(port or ""),
    ]
    read, write = os.pipe()

    def submit() -> str:
        with Client(daemon.socket) as client:
            argv = [word.encode() for word in words]
            request = m.Spawn(
                id=client.next_id(), argv=argv, cwd=b"/", env=PATH, limits=list(limits),
                isolation=isolation, stdin="descriptor", descriptors=1,
            )  # fmt: skip
            client.send(request, [read])
            reply = client.arrived()[0].reply
            assert isinstance(reply, m.RunReply), reply
            return reply.run.id

    with os.fdopen(write, "wb") as end:
        try:
            run = as_user(uid, submit)
        finally:
            os.close(read)
        yield Call(daemon, run, end)


class Call:
    def __init__(self, daemon: Daemon, run: str, stdin: BinaryIO) -> None:
        self.daemon, self.run, self.stdin, self.made = daemon, run, stdin, 1

    def again(self) -> str:
        """Have it make another call. Return how that was answered."""
        self.stdin.write(b"\n")
        self.stdin.flush()
        self.made += 1
        return self.said

    @property
    def said(self) -> str:
        """How the last call was answered, once it was."""
        path = self.daemon.state_dir / "output" / f"{self.run}.out"
        wait_until(lambda: path.read_text().count("\n") == self.made, "the call is answered")
        return path.read_text().splitlines()[-1].strip()

    def ended(self) -> RunInfo:
        self.stdin.close()
        with self.daemon.client() as client:
            return client.call(
                m.Wait(id=client.next_id(), run=self.run, timeout=60), m.RunReply
            ).run

    def cost(self) -> float | None:
        with self.daemon.client() as client:
            return client.call(
                m.Info(id=client.next_id(), run=self.run), m.RunReply
            ).run.total_cost_usd


def record(daemon: Daemon, uid: int | None) -> tuple[int, int]:
    """Return pid and port of the gateway of a user, or of the service's own."""
    found = json.loads(
        (
            daemon.state_dir / (f"gateway-{uid}.json" if uid is not None else "gateway.json")
        ).read_text()
    )
    return found["pid"], found["port"]


def status_of(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def family(pid: int) -> list[int]:
    """Return a process and those that it has started."""
    return [pid, *(each.pid for each in psutil.Process(pid).children())]


def openers(provider: Provider) -> set[int]:
    """Return the users of the processes that have a connection to the provider."""
    port = urlsplit(provider.url).port
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {int(line[7]) for line in lines if line[2].endswith(f":{port:04X}") and line[3] == "01"}


def test_each_users_calls_come_from_that_user(everyones: Daemon, provider: Provider) -> None:
    with (
        calling(everyones, FIRST, stall=True) as one,
        calling(everyones, SECOND, stall=True) as two,
    ):
        wait_until(lambda: provider.stalled == 2, "both are under way")
        assert openers(provider) == {FIRST, SECOND}
        provider.released.set()
        assert (one.said, two.said) == ("200 True", "200 True")
        for call in (one, two):
            assert call.ended().status == "completed"
    assert {bill.key for bill in provider.bills} == {"own"}


def test_a_key_of_the_operators_is_used_by_the_services_gateway_alone(
    everyones: Daemon, provider: Provider
) -> None:
    with calling(everyones, FIRST, stall=True) as free:
        wait_until(lambda: provider.stalled == 1, "it is under way")
        with calling(everyones, FIRST, upstream="keyed", stall=True, padding=300_000) as paid:
            wait_until(lambda: provider.stalled == 2, "it is under way")
            assert openers(provider) == {FIRST, 0}
            assert SECRET.encode() not in b"".join(
                memory(pid) for pid in family(record(everyones, FIRST)[0])
            )
            provider.released.set()
            assert (free.said, paid.said) == ("200 True", "200 True")
            assert paid.ended().total_cost_usd == pytest.approx(provider.bills[1].usd)
        assert free.ended().total_cost_usd == pytest.approx(provider.bills[0].usd)
    assert [bill.key for bill in provider.bills] == ["own", SECRET]
    with calling(everyones, FIRST, port=record(everyones, None)[1]) as around:
        assert "404" in around.said
        assert "at that of your own gateway" in around.said
    assert len(provider.bills) == 2


def memory(pid: int) -> bytes:
    """Return what a process has in memory and in its environment."""
    found = [Path(f"/proc/{pid}/environ").read_bytes()]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            area, rights, *_ = line.split()
            if rights.startswith("rw"):
                first, last = (int(number, 16) for number in area.split("-"))
                with suppress(OSError, ValueError):
                    mem.seek(first)
                    found.append(mem.read(last - first))
    return b"".join(found)


def test_a_limit_of_money_holds_for_a_key_of_the_operators(
    everyones: Daemon, provider: Provider
) -> None:
    """The user's gateway asks about nothing there, so only the service's own can refuse."""
    with calling(
        everyones, FIRST, limit("cost", 0.01, "refuse"), upstream="keyed", padding=300_000
    ) as call:
        assert call.said.startswith("400")
        assert "limit" in call.said
    assert provider.bills == []


def test_a_gateway_is_its_users_and_hides_from_the_user(everyones: Daemon) -> None:
    with calling(everyones, FIRST, padding=300_000, then=True) as call:
        assert call.said == "200 True"
        pid, port = record(everyones, FIRST)
        processes = family(pid)
        # what reads large bodies has been forked by the second
        assert len(processes) == 2, processes
        processes += [each for each in family(processes[1]) if each not in processes]
        for each in processes:
            found = status_of(each)
            assert found["Uid"] == [str(FIRST)] * 4
            assert found["Groups"] == []
            assert found["NoNewPrivs"] == ["1"]
            assert {
                int(found[name][0], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")
            } == {0}
            for name in ("environ", "mem", "maps", "fd", "auxv", "stack"):
                with pytest.raises(Failed, match=r"Permission denied|Operation not permitted"):
                    as_user(
                        FIRST,
                        lambda path=f"/proc/{each}/{name}": (  # type: ignore[misc]
                            os.listdir(path) if "fd" in path else os.open(path, 0)
                        ),
                    )
            assert as_user(FIRST, lambda each=each: traced(each)) == (-1, 1)  # type: ignore[misc]
        for name in (f"gateway-{FIRST}.calls", f"gateway-{FIRST}.json"):
            with pytest.raises(Failed, match="Permission denied"):
                as_user(FIRST, lambda name=name: os.open(everyones.state_dir / name, 0))  # type: ignore[misc]
        assert as_user(FIRST, lambda: post(port)) == 403
        call.ended()


def traced(pid: int) -> tuple[int, int]:
    """Try to trace a process. Return the result of ptrace(2), and errno."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    return libc.ptrace(0x4206, pid, None, None), ctypes.get_errno()  # PTRACE_SEIZE


def test_a_users_gateway_serves_no_other_user(everyones: Daemon, provider: Provider) -> None:
    with calling(everyones, FIRST, then=True) as call:
        assert call.said == "200 True"
        _, port = record(everyones, FIRST)
        with calling(everyones, SECOND, port=port) as foreign:
            assert foreign.said.startswith("403")
            assert "another user's gateway" in foreign.said
        call.ended()
    assert len(provider.bills) == 1


def test_connections_of_one_user_leave_another_alone(everyones: Daemon) -> None:
    with calling(everyones, FIRST, then=True) as call:
        assert call.said == "200 True"
        _, port = record(everyones, FIRST)

        def flood() -> list[socket.socket]:
            return [socket.create_connection(("127.0.0.1", port)) for _ in range(500)]

        crowd = flood()
        with calling(everyones, SECOND) as other:
            assert other.said == "200 True"
        for each in crowd:
            each.close()
        call.ended()


def test_a_gateway_that_does_nothing_any_more_concerns_its_user_alone(everyones: Daemon) -> None:
    """The daemon ends it nevertheless."""
    with calling(everyones, FIRST, then=True) as call:
        assert call.said == "200 True"
        pid, _ = record(everyones, FIRST)
        as_user(FIRST, lambda: os.kill(pid, signal.SIGSTOP))
        for upstream in ("anthropic", "keyed"):
            with calling(everyones, SECOND, upstream=upstream) as other:
                assert other.said == "200 True"
        assert everyones.sfactl("status").returncode == 0
        assert everyones.stop() == 0
    assert not alive(pid)


def test_a_user_who_kills_its_gateway_harms_itself_alone(
    everyones: Daemon, provider: Provider
) -> None:
    with (
        calling(everyones, FIRST, stall=True, then=True) as own,
        calling(everyones, SECOND, stall=True) as other,
    ):
        wait_until(lambda: provider.stalled == 2, "both are under way")
        pid, port = record(everyones, FIRST)
        second = record(everyones, SECOND)
        as_user(FIRST, lambda: os.kill(pid, signal.SIGKILL))
        assert own.said.startswith(("broken", "200 False"))
        wait_until(lambda: record(everyones, FIRST)[0] != pid, "there is another one")
        provider.released.set()
        assert other.said == "200 True"
        assert record(everyones, SECOND) == second
        assert record(everyones, FIRST)[1] == port
        wait_until(lambda: bool(own.cost()), "the call is charged")
        with pytest.raises(Failed, match="Operation not permitted"):
            as_user(FIRST, lambda: os.kill(second[0], signal.SIGKILL))
        own.ended()
    assert f"the gateway of user {FIRST} ended (signal 9)" in everyones.sfactl("events").stdout


def test_what_reads_bodies_is_replaced_with_its_gateway(everyones: Daemon) -> None:
    with calling(everyones, FIRST, padding=300_000, then=True) as call:
        assert call.said == "200 True"
        pid, _ = record(everyones, FIRST)
        as_user(FIRST, lambda: os.kill(family(pid)[1], signal.SIGKILL))
        wait_until(
            lambda: record(everyones, FIRST)[0] not in {0, pid}, "another gateway is started"
        )
        assert call.again() == "200 True"
        call.ended()


@pytest.mark.parametrize("how", ["killed", "re-executed"])
def test_all_gateways_outlive_their_daemon(everyones: Daemon, provider: Provider, how: str) -> None:
    with (
        calling(everyones, FIRST, stall=True) as one,
        calling(everyones, SECOND, stall=True) as two,
    ):
        wait_until(lambda: provider.stalled == 2, "both are under way")
        before = [record(everyones, uid) for uid in (None, FIRST, SECOND)]
        if how == "killed":
            everyones.kill()
            everyones.restart()
        else:
            everyones.reexecute()
        provider.released.set()
        assert (one.said, two.said) == ("200 True", "200 True")
        assert [record(everyones, uid) for uid in (None, FIRST, SECOND)] == before
        usd = [bill.usd for bill in provider.bills]
        for call in (one, two):
            over = call.ended()
            assert over.status == "completed"
            assert over.total_cost_usd == pytest.approx(usd[0])
    with calling(everyones, FIRST) as again:
        assert again.said == "200 True"
    assert everyones.stop() == 0
    assert [pid for pid, _ in before if alive(pid)] == []
    assert list(everyones.state_dir.glob("gateway-*")) == []


def test_a_gateway_whose_record_is_damaged_is_replaced(everyones: Daemon) -> None:
    with calling(everyones, FIRST, then=True) as call:
        assert call.said == "200 True"
        pid, _ = record(everyones, FIRST)
        everyones.kill()
        (everyones.state_dir / f"gateway-{FIRST}.json").write_bytes(b"{")
        everyones.restart()
        wait_until(lambda: not alive(pid), "the gateway that no daemon knows is ended")
        with calling(everyones, FIRST) as other:
            assert other.said == "200 True"
        call.ended()
    assert f"gateway-{FIRST}.json cannot be read" in everyones.sfactl("events").stdout


@pytest.mark.needs("bwrap")
def test_an_isolated_run_reaches_all_upstreams_through_one_port(provider: Provider) -> None:
    with open_directory() as place, serving(place, provider, readable_by_all(place)) as daemon:
        for upstream in ("anthropic", "keyed"):
            with calling(daemon, FIRST, isolation=NET, upstream=upstream) as call:
                assert call.said == "200 True"
    assert sorted(str(bill.key) for bill in provider.bills) == [SECRET, "own"]


def test_a_key_that_comes_with_a_reload_counts_for_live_runs(
    everyones: Daemon, provider: Provider
) -> None:
    with calling(everyones, FIRST, then=True) as call:
        assert call.said == "200 True"
        text, free = everyones.config.read_text(), 'api = "anthropic"\n[quotas]'
        everyones.config.write_text(
            text.replace(
                free, free.replace("[", f'key_file = "{everyones.config.parent / "key"}"\n[')
            )
        )
        assert everyones.sfactl("reload").returncode == 0
        assert call.again() == "200 True"
        call.ended()
    assert [bill.key for bill in provider.bills] == ["own", SECRET]


def test_a_gateway_ends_with_the_runs_of_its_user(everyones: Daemon) -> None:
    with calling(everyones, FIRST) as call, calling(everyones, SECOND, then=True) as other:
        assert (call.said, other.said) == ("200 True", "200 True")
        pid, port = record(everyones, FIRST)
        wait_until(
            lambda: not (everyones.state_dir / f"gateway-{FIRST}.json").exists(),
            "its address is given up",
        )
        assert not alive(pid)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert other.again() == "200 True"
        with calling(everyones, FIRST) as again:
            assert again.said == "200 True"
        other.ended()


def test_no_other_process_of_the_user_is_let_in_as_the_gateway(everyones: Daemon) -> None:
    with calling(everyones, FIRST, then=True) as call:
        assert call.said == "200 True"

        def ask() -> str:
            with Client(everyones.socket) as client:
                client.send(FindCaller(id=client.next_id(), uid=FIRST, cgroup=1))
                return str(client.arrived()[0].reply)

        assert "only the daemon's own gateway may" in as_user(FIRST, ask)
        call.ended()


def test_a_gateway_can_only_ask_about_runs_of_its_user(
    everyones: Daemon, provider: Provider
) -> None:
    """As one would do that hostile HTTP has taken over. The test lets the daemon adopt such a
    process."""
    with (
        calling(everyones, SECOND, stall=True, then=True) as other,
        calling(everyones, FIRST, then=True) as own,
    ):
        wait_until(lambda: provider.stalled == 1, "it is under way")
        with everyones.client() as client:
            admitted = client.call(
                m.ListCalls(id=client.next_id(), run=other.run), m.CallPage
            ).calls[0]
        assert own.said == "200 True"
        reservation = f"{other.run}-{admitted.number}"
        model = "claude-sonnet-4-5"

        def ask() -> list[str]:
            with Client(everyones.socket) as client:
                client.call(ServeGateway(id=client.next_id(), reservations=[]), GatewaySettings)
                window = SeenWindow(window="5h", used_ratio=1.0, rejected=True)
                seen = partial(
                    m.SeeWindows,
                    provider="anthropic",
                    time=0.0,
                    login="login",
                    windows=[window],
                )
                admit = partial(m.AdmitCall, model=model, input_tokens=1, max_output=1)
                requests: list[m.Request] = [
                    admit(id=client.next_id(), run=other.run, upstream="anthropic"),
                    admit(id=client.next_id(), run=own.run, upstream="keyed"),
                    admit(id=client.next_id(), run=own.run, upstream="anthropic"),
                    m.EndCall(
                        id=client.next_id(),
                        run=own.run,
                        reservation=reservation,
                        model=model,
                        tokens=Tokens(),
                    ),
                    seen(id=client.next_id(), run=other.run),
                    seen(id=client.next_id(), run=own.run, keyed=True),
                    m.List(id=client.next_id()),
                    m.Stop(id=client.next_id(), runs=[own.run]),
                ]
                found = []
                for request in requests:
                    client.send(request)
                    reply = client.arrived()[0].reply
                    found.append(
                        reply.message if isinstance(reply, m.Error) else type(reply).__name__
                    )
                return found

        with waiting_as_user(FIRST, ask) as (pid, go):
            everyones.kill()
            os.kill(record(everyones, FIRST)[0], signal.SIGKILL)
            path = everyones.state_dir / f"gateway-{FIRST}.json"
            stat = kernel.stat(pid)
            assert stat is not None
            path.write_text(
                json.dumps(json.loads(path.read_text()) | {"pid": pid, "started": stat.started})
            )
            everyones.restart()
            answers = go()
        assert answers == [
            f"run {other.run} is of another user than this gateway",
            f"calls of run {own.run} to upstream 'keyed' are another gateway's",
            "CallDecision",
            "Done",
            f"run {other.run} is of another user than this gateway",
            "Done",
            "the gateway may not 'list'",
            "the gateway may not 'stop'",
        ]
        with everyones.client() as client:
            (account,) = client.call(
                m.ListSubscriptions(id=client.next_id()), m.SubscriptionList
            ).accounts
        assert account.user == user_name(FIRST), "it tells of its user's own account only"
        provider.released.set()
        assert other.said == "200 True"
        assert other.ended().total_cost_usd == pytest.approx(provider.bills[0].usd)
        own.ended()


def test_status_and_doctor_name_the_users(everyones: Daemon) -> None:
    with calling(everyones, FIRST, then=True) as call:
        assert call.said == "200 True"
        pid, port = record(everyones, FIRST)
        wait_until(lambda: record(everyones, None)[0], "the service's own gateway is there")
        assert f"gateway of {FIRST}" in everyones.sfactl("status").stdout
        with everyones.client() as client:
            found = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
        assert [(each.user, each.url, each.pid) for each in found.gateways] == [
            (str(FIRST), f"http://127.0.0.1:{port}", pid)
        ]
        assert found.gateway_pid == record(everyones, None)[0]
        told = everyones.sfactl("doctor").stdout
        assert f"gateway of {FIRST}" in told
        assert "the gateway has its key" in told

        def status() -> m.DaemonStatus:
            with Client(everyones.socket) as client:
                return client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)

        own = as_user(FIRST, status)
        assert (own.gateway, own.gateway_pid, own.gateways) == (f"http://127.0.0.1:{port}", pid, [])
        assert as_user(SECOND, status).gateway is None
        call.ended()
