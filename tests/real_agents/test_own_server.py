"""Real programs that would hand work to servers of their own: with such a server of a person
outside of the run, and without."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CODEX, OPENCODE
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, gate_of, in_a_terminal
from tests.real_agents.script import Say, Shell
from tests.real_agents.test_gateway import MODELS, PRICES, command, desk_of

BACKGROUND = (
    f"claude --bg --model {MODELS[0]} --dangerously-skip-permissions 'the task' | tee bg; "
    "id=$(sed -n 's/backgrounded · //p' bg); "
)


def program(at: Desk, *words: str) -> subprocess.CompletedProcess[str]:
    """Call a program as a person does, outside of any run."""
    return subprocess.run(
        words, env=at.env, cwd=at.env["HOME"], capture_output=True, text=True, timeout=60
    )


def handed_over(at: Desk) -> list[str]:
    return [
        event["message"]
        for line in at.daemon.log.read_text().splitlines()
        if (event := json.loads(line)).get("type") == "handed_off"
    ]


@contextmanager
def service_of_claude(at: Desk) -> Iterator[None]:
    """Have a background service of a person outside, as any earlier `claude --bg` leaves it."""
    begun = program(at, "claude", "--bg")
    assert "backgrounded" in begun.stdout, begun.stdout + begun.stderr
    try:
        yield
    finally:
        stopped = program(at, "claude", "daemon", "stop", "--any")
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr


@pytest.fixture(params=["alone", "beside a service"])
def beside(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "beside a service")


def claude_desk(desk: MakeDesk, *script: Shell | Say, containment: str = "auto") -> Desk:
    at = desk_of(desk, CLAUDE, PRICES, script, mode=containment)
    # a background session asks a person about a directory, and sessions in /tmp share a service
    at.env["CLAUDE_CODE_TMPDIR"] = at.env["TMPDIR"]
    return at


@contextmanager
def maybe_beside(at: Desk, beside: bool) -> Iterator[None]:
    if not beside:
        yield
        return
    with service_of_claude(at):
        yield


def test_a_model_that_asks_for_the_background_gets_a_child_run(
    desk: MakeDesk, beside: bool, containment: str
) -> None:
    script: list[Shell | Say] = [
        Shell(f"{BACKGROUND} sfactl wait $id; claude agents --all; claude logs $id"),
        Say("I have done the task."),
        Say("Thanks."),
    ]
    at = claude_desk(desk, *script, containment=containment)
    with maybe_beside(at, beside):
        done = at.sfactl("run", "--", *command(CLAUDE, "argv"))
        assert done.returncode == 0, done.stdout + done.stderr
        (told,) = at.talk(CLAUDE).told()
        root, child = at.listed()
        assert f"{child['id']} ends with this run, unless you wait" in told
        assert "I have done the task." in told
        assert re.search(rf"{child['id']}\s+done\s+the task", told)
        assert (child["parent_id"], child["status"]) == (root["id"], "completed")
        usage = at.json("info", child["id"])["usage_by_source"]["gateway"]
        assert usage["messages"] == 1
        if beside:
            sessions = json.loads(program(at, "claude", "agents", "--json", "--all").stdout)
            assert "the task" not in [each.get("name") for each in sessions]
    assert not handed_over(at)


def test_a_parent_that_ends_ends_what_it_has_in_the_background(
    desk: MakeDesk, tmp_path: Path
) -> None:
    with gate_of(tmp_path / "task") as task, gate_of(tmp_path / "parent") as parent:
        at = claude_desk(desk, Shell(task.command))
        root = at.spawn("parent", "sh", "-c", f"{BACKGROUND} {parent.command}")
        wait_until(lambda: parent.reached and task.reached, "the task has begun")
        parent.open()
        wait_until(lambda: at.listed()[1]["status"] == "cancelled", "it ends with the run")
    assert "ends with this run" in at.sfactl("logs", root).stdout
    assert [run["status"] for run in at.listed()] == ["completed", "cancelled"]


@pytest.mark.parametrize("how", ["hook", "variable", "path", "link"])
def test_the_background_around_the_shim_is_refused_by_the_program_or_told(
    desk: MakeDesk, commands: Path, beside: bool, how: str
) -> None:
    """A hook finds the shim. By its path, or with a variable that allows it, also under another
    name, the program is asked."""
    own = "./ed" if how == "link" else shlex.quote(str(commands / "claude"))
    line = f"{own} --bg --model {MODELS[0]} elsewhere 2>&1"
    at = claude_desk(
        desk,
        # a session that a service takes may begin and end between two looks on a busy machine
        Shell(
            line
            if how == "path"
            else f"export CLAUDE_CODE_DISABLE_AGENT_VIEW=0; for n in 1 2 3 4; do {line}; done"
        )
        if how != "hook"
        else Say("From the hook, or me."),
        Say("Thanks."),
        Say("More."),
    )
    if how == "hook":
        # the child run has this hook, too, and so has a session of the service outside
        asks = (
            f'[ -z "$SFA_RUN_ID" ] || [ -e told ] || claude --bg --model {MODELS[0]} x >told 2>&1'
        )
        hook = {"type": "command", "command": asks}
        settings = Path(at.env["HOME"], ".claude", "settings.json")
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(json.dumps({"hooks": {"SessionStart": [{"hooks": [hook]}]}}))
    Path(at.env["HOME"], "ed").symlink_to((commands / "claude").resolve())
    with maybe_beside(at, beside):
        done = at.sfactl("run", "--", *command(CLAUDE, "argv"))
        assert done.returncode == 0, done.stdout + done.stderr
    if how == "hook":
        assert "ends with this run" in Path(at.env["HOME"], "told").read_text()
        assert not handed_over(at)
    elif how == "path":
        (told,) = at.talk(CLAUDE).told()
        assert "'--bg' is disabled by CLAUDE_CODE_DISABLE_AGENT_VIEW" in told
        assert not handed_over(at)
    else:
        wait_until(lambda: bool(handed_over(at)), "it is told")
        assert "`claude --bg` hands work to" in handed_over(at)[0]


def test_a_session_in_a_terminal_beside_a_service_has_nothing_to_do_with_it(
    desk: MakeDesk,
) -> None:
    at = claude_desk(desk, Shell("sleep 3"), Say("Done."))
    with (
        service_of_claude(at),
        in_a_terminal(at, "run", "-q", "--stdio", "inherit", "--", *CLAUDE.in_terminal),
    ):
        wait_until(lambda: at.talk(CLAUDE).answered == 2, "it has done its task")
        (run,) = at.listed()
        at.sfactl("stop", run["id"])
    assert not handed_over(at)


@contextmanager
def daemon_of_codex(at: Desk) -> Iterator[None]:
    begun = program(at, "codex", "app-server", "daemon", "start")
    assert '"status":"started"' in begun.stdout, begun.stdout + begun.stderr
    try:
        yield
    finally:
        program(at, "codex", "app-server", "daemon", "stop")
        for process in psutil.process_iter(["cmdline"]):  # its updater goes on
            if any(at.env["CODEX_HOME"] in word for word in process.info["cmdline"] or ()):
                process.kill()


@pytest.mark.parametrize("how", ["as the command", "in a script"])
def test_codex_in_a_terminal_beside_a_daemon_of_a_person(desk: MakeDesk, how: str) -> None:
    """As the command of a run it does its work itself; in a script that no shim sees, it is
    told."""
    at = desk(codex=[Say("Hi.")])
    alone = how == "as the command"
    argv = CODEX.in_terminal if alone else ["sh", "-c", f"{shlex.join(CODEX.in_terminal)}; true"]
    with (
        daemon_of_codex(at),
        in_a_terminal(at, "run", "-q", "--stdio", "inherit", "--no-gateway", "--", *argv),
    ):
        if alone:
            wait_until(lambda: at.talk(CODEX).answered == 1, "it has asked the model itself")
        else:
            wait_until(lambda: bool(handed_over(at)), "it is told")
        (run,) = at.listed()
        at.sfactl("stop", run["id"])
    assert bool(handed_over(at)) != alone


@pytest.mark.parametrize("words", ["cloud exec hi", "remote-control start", "queue --thread a"])
def test_codex_does_no_work_elsewhere(desk: MakeDesk, words: str) -> None:
    at = desk_of(desk, CODEX, PRICES, [Shell(f"codex {words}; echo code $?"), Say("So be it.")])
    done = at.sfactl("run", "--", *CODEX.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = at.talk(CODEX).told()
    assert f"codex {words.split()[0]} hands work to" in told
    assert "do not try again" in told
    assert "code 2" in told


@pytest.mark.parametrize("outside", [True, False])
def test_opencode_may_attach_to_a_server_in_its_tree_alone(desk: MakeDesk, outside: bool) -> None:
    attach = "opencode run --attach http://127.0.0.1:PORT --model anthropic/claude-sonnet-4-5 hi"
    at = desk_of(desk, OPENCODE, PRICES, [Say("Done.")])
    server = [OPENCODE.name, "serve", "--port", "0"]
    if outside:
        with subprocess.Popen(
            server, env=at.env, cwd=at.env["HOME"], stdout=subprocess.PIPE, text=True
        ) as serving:
            assert serving.stdout is not None
            port = next(found[1] for line in serving.stdout if (found := _PORT.search(line)))
            try:
                done = at.sfactl("run", "-q", "--", "sh", "-c", attach.replace("PORT", port))
            finally:
                serving.terminate()
        assert done.returncode == 2
        assert "opencode --attach hands work to an opencode server" in done.stderr
        assert at.talk(OPENCODE).answered == 0
        return
    script = (
        f"{shlex.join(server)} >served & server=$!; "
        "until port=$(grep -om1 '127.0.0.1:[0-9]*' served | cut -d: -f2); [ $port ]; "
        f"do sleep 0.1; done; {attach.replace('PORT', '$port')}; kill $server"
    )
    done = at.sfactl("run", "-q", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "> build" in done.stderr
    assert not handed_over(at)


_PORT = re.compile(r"127\.0\.0\.1:(\d+)")
