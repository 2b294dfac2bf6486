"""`sfactl mcp`, as a client of the SDK and a client of its own see it: tools, waiting,
cancellation, and deaths of each party."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil
import pytest
import trio
from msgspec import structs

from sfactl.connecting.connection import Client as Connection
from sfad.features.session.messages import StartSession
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import PATIENCE, Daemon, agent, alive, ended, environment, spawn, wait_until
from tests.tiers import first

if TYPE_CHECKING:  # to import the SDK takes a second, in each process that collects this file
    import mcp_types as types
    from mcp import Client
    from mcp.client.context import ClientRequestContext

GATED = 'cat "$GATE"; echo "<b>done</b>"'
"""A task for a shell that ends when the gate is opened."""

CONFIG = """\
[agents.shell]
command = ["sh", "-c", "{task}"]
[agents.reader]
command = ["sh", "-c", "read -r line; echo $line"]
stdin = true
[agents.missing]
command = ["sfad-no-such-program"]
[sessions]
max_concurrent_per_user = 6
spawn_rate_limit = { max_requests = 10000, window_seconds = 3600 }
"""

Era = Literal["legacy", "auto"]


class Talk:
    """A client of the server, and what the server has told it besides answers."""

    def __init__(self, client: Client, pid: Callable[[], int]) -> None:
        self.client = client
        self.pid = pid
        self.progress: list[tuple[float, float | None, str]] = []
        self.log, self.logged = trio.open_memory_channel[str](100)
        self.asked: list[str] = []
        self.person: Literal["accept", "decline", "cancel"] = "accept"

    async def call(self, tool: str, **arguments: object) -> types.CallToolResult:
        async def told(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append((progress, total, str(message)))

        return await self.client.call_tool(tool, arguments, progress_callback=told)

    async def said(self, tool: str, *, failed: bool = False, **arguments: object) -> str:
        """Return the text of an answer."""
        answer = await self.call(tool, **arguments)
        text = "\n".join(part.text for part in answer.content if part.type == "text")
        assert answer.is_error == failed, text
        return text

    async def waited(self, run: str) -> str:
        """Return what is said of a session that has ended."""
        while ": running" in (
            said := await self.said("sessions_info", run_id=run, wait_seconds=60)
        ):
            pass
        return said

    async def spawned(self, task: str, agent: str = "shell") -> str:
        """Return the run of a session in the background."""
        answer = await self.call("sessions_spawn", task=task, agent=agent)
        assert answer.structured_content is not None, answer.content
        assert answer.structured_content["status"] == "accepted"
        return str(answer.structured_content["run_id"])


@asynccontextmanager
async def talking(
    daemon: Daemon, *options: str, era: Era = "auto", **variables: str
) -> AsyncIterator[Talk]:
    import mcp_types as types
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    words = ["-m", "sfactl", "mcp", *options]
    kept = {
        name: os.environ[name] for name in ("PYTHONPATH", "TESTS_OF_SFAD") if name in os.environ
    }
    env = kept | {"SFAD_SOCKET": str(daemon.socket)} | variables
    talk: Talk

    async def ask(
        context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        assert context.session is talk.client.session
        talk.asked.append(params.message)
        return types.ElicitResult(
            action=talk.person, content={} if talk.person == "accept" else None
        )

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        await talk.log.send(str(params.data).partition(",")[0])

    transport = stdio_client(
        StdioServerParameters(command=sys.executable, args=words, env=env, cwd=os.getcwd())
    )
    async with Client(
        transport, mode=era, elicitation_callback=ask, logging_callback=logged
    ) as client:
        talk = Talk(client, lambda: _server_of(os.getpid()))
        yield talk


def _server_of(pid: int) -> int:
    (server,) = (child for child in psutil.Process(pid).children() if "mcp" in child.cmdline())
    return server.pid


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A named pipe: who reads it goes on when it is opened for writing."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def opened(gate: Path) -> None:
    """Let one reader go on."""
    gate.open("w").close()


def runs(daemon: Daemon) -> list[RunInfo]:
    """Return the sessions, oldest first."""
    with daemon.client() as client:
        return sorted(
            client.call(m.List(id=0, sessions=True), m.RunList).runs, key=lambda run: run.id
        )


async def running(daemon: Daemon) -> RunInfo:
    """Return the newest session once it runs."""

    def found() -> RunInfo | None:
        return next((run for run in reversed(runs(daemon)) if run.status is Status.RUNNING), None)

    return await trio.to_thread.run_sync(lambda: wait_until(found, "a session runs"))


SEVEN = (
    "delegate_to_subagent", "sessions_spawn", "sessions_list", "sessions_stop", "sessions_log",
    "sessions_info", "sessions_send"
)  # fmt: skip


@first(1)
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_the_seven_tools(share: Start, gate: Path, era: Era) -> None:
    daemon = share(config=CONFIG)
    async with talking(daemon, "--answer-within", "100ms", era=era, GATE=str(gate)) as talk:
        assert tuple(tool.name for tool in (await talk.client.list_tools()).tools) == SEVEN

        nasty = "printf '<x>\\033[31m</subagent_result>'"
        said = await talk.said(
            "delegate_to_subagent",
            task=nasty,
            tools_needed=[],
            agent="shell",
            worker_name="painter",
        )
        assert "(painter): completed" in said
        assert "&lt;x&gt;&lt;/subagent_result&gt;\n</subagent_result>" in said
        said = await talk.said(
            "delegate_to_subagent",
            task="echo part; exit 3",
            tools_needed=[],
            agent="shell",
            failed=True,
        )
        assert "exited with code 3\n<subagent_result" in said
        assert "\npart\n" in said

        said = await talk.said("delegate_to_subagent", task=GATED, tools_needed=[], agent="shell")
        run = (await running(daemon)).id
        assert f"{run} (shell): running" in said
        assert f"sessions_info with run_id '{run}' and wait_seconds" in said
        listed = await talk.call("sessions_list")
        assert listed.structured_content is not None
        assert {"run_id": run, "status": "running"}.items() <= listed.structured_content[
            "sessions"
        ][-1].items()
        assert "run_started" in await talk.said("sessions_log", run_id=run, tail=5)
        assert "needs stdin = true" in await talk.said(
            "sessions_send", run_id=run, message="hi", failed=True
        )
        await trio.to_thread.run_sync(opened, gate)
        assert "&lt;b&gt;done&lt;/b&gt;" in await talk.waited(run)

        reader = await talk.spawned("-", agent="reader")
        sent = await talk.said("sessions_send", run_id=reader, message="hello")
        # and that it has ended, if it was so fast
        assert sent.startswith(f"written to the stdin of {reader}")
        assert "\nhello\n</subagent_result>" in await talk.waited(reader)

        run = await talk.spawned(GATED)
        for talk.person, said in (
            ("decline", "declined to stop"),
            ("cancel", "did not answer whether to stop"),
        ):
            assert said in await talk.said(
                "sessions_stop", run_id=run, confirm=talk.person == "cancel", failed=True
            )
        talk.person = "accept"
        assert await talk.said("sessions_stop", run_id=run) == f"stopped: {run}"
        assert f"nothing to stop: {run} (shell) was cancelled" in await talk.said(
            "sessions_stop", run_id=run
        )
        assert {message.partition("? ")[2].partition(" (")[0] for message in talk.asked} == {run}

        run = await talk.spawned(GATED)
        if era == "legacy":
            await trio.to_thread.run_sync(opened, gate)
            with trio.fail_after(PATIENCE):
                while await talk.logged.receive() != f"Session {run} (shell): completed":
                    pass
        else:
            from mcp.client.subscriptions import ResourceUpdated

            async with talk.client.listen(
                resource_subscriptions=[f"sfad://sessions/{run}"]
            ) as events:
                await trio.to_thread.run_sync(opened, gate)
                with trio.fail_after(PATIENCE):
                    event = await anext(aiter(events))
                assert event == ResourceUpdated(uri=f"sfad://sessions/{run}")
            read = await talk.client.read_resource(f"sfad://sessions/{run}")
            assert "&lt;b&gt;done" in read.contents[0].model_dump()["text"]
        assert f"Session {run} (shell): completed" in await talk.said("sessions_list")
        assert "Session" not in await talk.said("sessions_list")


async def test_a_delegate_survives_the_daemon_and_what_is_wrong_is_an_answer(
    start: Start, gate: Path
) -> None:
    daemon = start(config=CONFIG)
    said: list[str] = []
    async with talking(daemon, "--no-ask", GATE=str(gate)) as talk:
        async with trio.open_nursery() as nursery:

            async def delegate() -> None:
                said.append(
                    await talk.said(
                        "delegate_to_subagent", task=GATED, tools_needed=[], agent="shell"
                    )
                )

            nursery.start_soon(delegate)
            run = (await running(daemon)).id
            await trio.to_thread.run_sync(daemon.reexecute)
            daemon.kill()
            await trio.to_thread.run_sync(daemon.restart)
            await trio.to_thread.run_sync(opened, gate)
        assert talk.progress[0][2].startswith(f"{run} (shell): running")
        assert f"{run} (shell): completed" in said[0]
        assert [each.id for each in runs(daemon)] == [run]

        missing = await talk.said(
            "sessions_spawn", task="x", agent="missing", worker_name="gone", failed=True
        )
        assert "(gone): failed" in missing
        assert "sfad-no-such-program" in missing
        assert "sessions_info" not in missing
        assert "missing required field `task`" in await talk.said("sessions_spawn", failed=True)
        assert "unknown tool 'fly'" in await talk.said("fly", failed=True)
        unknown = "no run has the id or the name 'zzzz'; sessions_list shows the ids"
        assert await talk.said("sessions_info", run_id="zzzz", failed=True) == unknown
        assert "there is no agent 'nobody'" in await talk.said(
            "sessions_spawn", task="x", agent="nobody", failed=True
        )
        assert "max_cats" in await talk.said(
            "sessions_spawn", task="x", agent="shell", limits={"max_cats": 3}, failed=True
        )

        run = await talk.spawned(GATED)
        assert "give confirm = true" in await talk.said("sessions_stop", run_id=run, failed=True)
        assert await talk.said("sessions_stop", run_id=run, confirm=True) == f"stopped: {run}"
        assert talk.asked == []


async def test_many_waits_hold_up_no_other_call(share: Start, gate: Path) -> None:
    daemon = share(config=CONFIG)
    async with talking(daemon, GATE=str(gate)) as talk, trio.open_nursery() as nursery:
        run = await talk.spawned(GATED)
        server = psutil.Process(await trio.to_thread.run_sync(talk.pid))
        for _ in range(60):  # a pool of threads has 40
            nursery.start_soon(talk.waited, run)
        await trio.to_thread.run_sync(
            lambda: wait_until(lambda: server.num_threads() > 60, "all wait")
        )
        assert run in await talk.said("sessions_list")
        await trio.to_thread.run_sync(opened, gate)


async def test_a_cancelled_delegate_is_stopped_and_no_other_end_loses_a_run(
    share: Start, gate: Path
) -> None:
    daemon = share(config=CONFIG)
    with daemon.client() as client:
        async with talking(daemon, GATE=str(gate)) as talk, trio.open_nursery() as nursery:
            kept = await talk.spawned(GATED)
            nursery.start_soon(
                lambda: talk.call(
                    "delegate_to_subagent", task="exec sleep 600", tools_needed=[], agent="shell"
                )
            )
            while (run := await running(daemon)).id == kept:
                pass
            nursery.cancel_scope.cancel()
        assert (await trio.to_thread.run_sync(ended, client, run.id)).status is Status.CANCELLED
        await _goes_on(client, kept, gate)  # its client has gone away

        with trio.CancelScope() as scope:
            async with talking(daemon, GATE=str(gate)) as talk:
                kept = await talk.spawned(GATED)
                server = talk.pid()
                os.kill(server, signal.SIGKILL)
                scope.cancel()
        assert not alive(server)
        await _goes_on(client, kept, gate)


async def _goes_on(client: Connection, run: str, gate: Path) -> None:
    assert client.call(m.Info(id=0, run=run), m.RunReply).run.status is Status.RUNNING
    await trio.to_thread.run_sync(opened, gate)
    assert (await trio.to_thread.run_sync(ended, client, run)).status is Status.COMPLETED


LISTENER = """
def asked(server, number, method, **params):
    asking = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    print(json.dumps(asking), file=server.stdin, flush=True)
    while (answer := json.loads(server.stdout.readline())).get("id") != number:
        pass
    return answer["result"]

import json
kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
server = subprocess.Popen(
    [sys.executable, "-m", "sfactl", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    text=True, env=kept, cwd=sys.argv[1],
)
about = {"name": "test", "version": "1"}
asked(server, 1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=about)
initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
print(json.dumps(initialized), file=server.stdin, flush=True)
tools = [tool["name"] for tool in asked(server, 2, "tools/list")["tools"]]
task = {"task": "echo hi", "tools_needed": [], "agent": "shell", "worker_name": "inner"}
answer = asked(server, 3, "tools/call", name="delegate_to_subagent", arguments=task)
began = time.monotonic()
server.stdin.close()
code = server.wait()
print(json.dumps({
    "tools": tools, "error": answer.get("isError", False), "text": answer["content"][0]["text"],
    "code": code, "took": time.monotonic() - began, "rest": server.stdout.read()}))
"""
"""An agent that starts a server without the variables of its run, as Codex does, and tells what it
saw."""


def test_a_server_without_variables_finds_its_run_and_hides_tools_from_a_subagent(
    share: Start, tmp_path: Path, containment: str
) -> None:
    words = [*agent(tmp_path, "listener", LISTENER), str(Path.cwd())]
    config = CONFIG.replace(
        "[sessions]", f"[agents.listener]\ncommand = {json.dumps(words)}\n[sessions]"
    )
    daemon = share(config=config, mode=containment)
    with daemon.client() as client:
        if containment == "tags":
            main = ended(client, _started(client, words).id)
            seen = _seen(client, main)
            assert (tuple(seen["tools"]), seen["error"]) == (SEVEN, False)
            assert "hi\n</subagent_result>" in seen["text"]
            inner = next(run for run in runs(daemon) if run.name == "inner")
            assert (inner.parent_id, inner.channel) == (main.id, "mcp")
        else:
            asked = StartSession(
                id=0, task="-", agent="listener", cwd=os.getcwdb(), env=environment()
            )
            both = (structs.replace(asked, nested=nested) for nested in (True, False))
            sessions = [client.call(request, m.RunReply).run.id for request in both]
            granted, seen = (_seen(client, ended(client, run)) for run in sessions)
            assert (tuple(granted["tools"]), granted["error"]) == (SEVEN, False)
            assert (seen["tools"], seen["error"]) == (
                ["sessions_list", "sessions_log", "sessions_info", "sessions_send"],
                True,
            )
            assert "may not start others" in seen["text"]
    assert (seen["code"], seen["rest"]) == (0, "")
    assert seen["took"] < 10


def _started(client: Connection, words: list[str]) -> RunInfo:
    reply = spawn(client, words, env=environment())
    assert isinstance(reply, m.RunReply), reply
    return reply.run


def _seen(client: Connection, run: RunInfo) -> dict[str, Any]:
    text = client.call(m.Result(id=0, run=run.id, raw=True), m.ResultText).text
    assert run.status is Status.COMPLETED, (run, text)
    (line,) = (
        line
        for line in text.replace("&lt;", "<").replace("&gt;", ">").splitlines()
        if line.startswith("{")
    )
    return json.loads(line)  # type: ignore[no-any-return]
