import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

import sfactl
from sfad.protocol.requests.following import Watch
from sfad.protocol.requests.listing import List, RunList

from .. import exits
from ..app import app
from ..connecting.connection import Client
from ..connecting.inside import inside_run
from ..options.shared import Json, Socket

STEP_SECONDS = 60.0
"""Seconds that one step may take before the demo gives up."""
CALL = '"$DEMO_PYTHON" -m sfactl'

MODEL, OUTPUT, USD = "demo-model", 1000, 0.015
"""The model of the demo, the tokens that each reply has, and what they cost."""
CONFIG = f"""
[gateway.upstreams.anthropic]
url = "http://127.0.0.1:%d"
api = "anthropic"
[prices]
{MODEL} = {{ input_mtok = 0, output_mtok = {1e6 * USD / OUTPUT:g} }}
"""

SCRIPTS = {
    "planner": (
        f"echo 'planner: I ask a reviewer'\n{CALL} run -q --name reviewer -- sh "
        "reviewer\necho 'planner: done'\n"
    ),
    "reviewer": (
        f"echo 'reviewer: I ask a summariser'\n{CALL} run -q --name summariser -- sh summariser\n"
    ),
    "summariser": "read go < gate\necho 'summariser: three lines become one'\n",
    "self-caller": f"{CALL} run -q --name helper -- sh helper\n",
    "helper": f"{CALL} run -q --name self-caller -- sh self-caller\n",
    "deeper": f"N=$((${{N:-0}} + 1)); export N\n{CALL} run -q --name level-$N -- sh deeper\n",
    "stubborn": (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "def tell(): os.write(os.open('gate', os.O_WRONLY), b'%d\\n' % os.getpid())\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        tell(); signal.pause(); signal.pause()\n"
        "tell()\n"
        "while True: signal.pause()\n"
    ),
    "spender": (
        "import http.client, json, os, urllib.parse\n"
        "url = urllib.parse.urlsplit(os.environ['ANTHROPIC_BASE_URL'])\n"
        f"body = json.dumps({{'model': '{MODEL}', 'max_tokens': {OUTPUT}, 'messages': [{{'role': "
        f"'user', 'content': 'go on'}}]}})\n"
        "for number in range(1, 99):\n"
        "    connection = http.client.HTTPConnection(url.netloc)\n"
        "    connection.request('POST', f'{url.path}/v1/messages', body)\n"
        "    reply = connection.getresponse()\n"
        "    said = json.load(reply)\n"
        "    if reply.status != 200:\n"
        "        raise SystemExit(f'call {number}: HTTP {reply.status}: ' + "
        "said['error']['message'])\n"
        "    print(f'call {number}: the model answers', flush=True)\n"
    ),
}
"""The agents. Agents and demo wait for each other at `gate`, a named pipe, instead of sleeping."""

STUBBORN_PROCESSES = 4

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "sleeping uninterruptibly",
    "T": "stopped",
    "Z": "ended; its parent has not reaped it yet",
}
"""The letters of proc_pid_stat(5). A zombie is not alive: the daemon reaps it some milliseconds
later."""


@app.command()
def demo(socket: Socket = None, json: Json = False) -> None:
    """Watch the daemon refuse, limit and stop runs (15 seconds, leaves nothing).

    Starts its own daemon in a private directory, and scripted agents under it: a planner that
    asks a reviewer that asks a summariser, an agent that would call itself, agents that would
    nest too deep, one that ignores SIGTERM, double-forks and changes session, and one that
    calls a model without end. That model is the demo's own: nothing is sent to the net. Each
    command shown is really run. Afterwards the daemon is stopped and the directory removed.
    """
    del socket, json
    inside = inside_run()
    if inside is not None:
        raise exits.Quit(
            exits.ExitCode.UNREACHABLE,
            f"the demo starts a daemon, which is not allowed inside a run ({inside})",
        )
    with (
        _model() as model,
        _directory(CONFIG % model.server_port) as directory,
        _daemon(directory) as surroundings,
    ):
        stage = Stage(directory, surroundings)
        stage.tree()
        stage.loop()
        stage.depth()
        stage.stubborn()
        stage.spender(model)
    print(
        "\nThe demo's daemon is stopped and its directory removed. To begin: "
        "sfactl spawn -- COMMAND…"
    )


class Model(ThreadingHTTPServer):
    """An API that answers each call with the tokens that it asks for, and counts them."""

    calls = 0


class _Answer(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        asked = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
        self.server.calls += 1
        usage = {"input_tokens": 10, "output_tokens": asked["max_tokens"]}
        body = msgspec.json.encode({"content": [{"type": "text", "text": "…"}], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def _model() -> Iterator[Model]:
    with Model(("127.0.0.1", 0), _Answer) as model:
        thread = threading.Thread(target=model.serve_forever, args=[0.05])
        thread.start()
        try:
            yield model
        finally:
            model.shutdown()
            thread.join()


@contextmanager
def _directory(config: str) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="sfad-demo-"))
    try:
        for name, text in SCRIPTS.items():
            (directory / name).write_text(text)
        (directory / "sfad.toml").write_text(config)
        os.mkfifo(directory / "gate")
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _daemon(directory: Path) -> Iterator[dict[str, str]]:
    surroundings = _surroundings(directory)
    readable, writable = os.pipe()
    with open(directory / "log", "wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-P", "-m", "sfad", "serve", "--ready-fd", str(writable)],
            env=surroundings,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writable,),
        )
    os.close(writable)
    try:
        _await_ready(readable, directory)
        yield surroundings
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


def _surroundings(directory: Path) -> dict[str, str]:
    packages = str(Path(sfactl.__file__).parents[1])
    elsewhere = ("_BASE_URL", "_PROXY", "_proxy")  # calls must reach the demo's model, and no other
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SFA_", "SFAD_")) and not name.endswith(elsewhere)
    }
    return {
        **ours,
        "SFAD_SOCKET": str(directory / "sock"),
        "SFAD_STATE_DIR": str(directory / "state"),
        "SFAD_CONFIG": str(directory / "sfad.toml"),
        "DEMO_PYTHON": sys.executable,
        # So that agents find a checkout that is not installed.
        "PYTHONPATH": os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")])),
    }


def _await_ready(readable: int, directory: Path) -> None:
    ready, _, _ = select.select([readable], [], [], STEP_SECONDS)
    told = os.read(readable, 16) if ready else b""
    os.close(readable)
    if not told:
        raise exits.Quit(
            exits.ExitCode.UNREACHABLE,
            "the demo's daemon did not start:\n" + (directory / "log").read_text(),
        )


class Stage:
    def __init__(self, directory: Path, surroundings: Mapping[str, str]) -> None:
        self._directory = directory
        self._surroundings = surroundings
        self._socket = directory / "sock"

    def tree(self) -> None:
        """Show three agents, each started by the one above through the same daemon."""
        _say(
            "1. A planner asks a reviewer, which asks a summariser. "
            "Each start goes through the daemon."
        )
        planner = self._run("spawn", "--name", "planner", "--", "sh", "planner")
        self._await_started(planner, "summariser")
        self._run("tree")
        (self._directory / "gate").write_text("go\n")
        self._run("wait", planner)
        self._run("logs", planner)

    def loop(self) -> None:
        """Show that the guard refuses one name twice in a chain."""
        _say("2. An agent whose helper calls it again. The guard refuses what would be a loop:")
        self._run("run", "-q", "--name", "self-caller", "--", "sh", "self-caller")

    def depth(self) -> None:
        """Show that the guard refuses one level more than is allowed."""
        _say(
            "3. An agent that delegates to a deeper one, without end. "
            "Three levels are allowed here:"
        )
        self._run("run", "-q", "--max-depth", "3", "--name", "level-0", "--", "sh", "deeper")

    def stubborn(self) -> None:
        """Show that `stop` ends a run to its last process."""
        _say(
            "4. An agent that ignores SIGTERM, double-forks and changes session, three times over:"
        )
        run = self._run("spawn", "--name", "stubborn", "--", sys.executable, "stubborn")
        processes = self._told_pids()
        _show(processes, "before")
        self._run("stop", "--grace", "1", run)
        _show(processes, "after")
        self._run("why", run)

    def spender(self, model: Model) -> None:
        """Show that the gateway makes no call that the limit has no room for."""
        _say(
            "5. An agent that calls a model without end. "
            "The gateway makes no call that could cost more than 0.05 USD in all:"
        )
        limit = ("--limit", "cost=0.05:refuse")
        self._run(
            "run", "-q", "--gateway", *limit, "--name", "spender", "--", sys.executable, "spender"
        )
        self._run("calls", "spender")
        print(
            f"     The model has answered {model.calls} calls, for {model.calls * USD:g} USD.",
            flush=True,
        )

    def _run(self, *words: str) -> str:
        print(f"   $ sfactl {' '.join(words)}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "sfactl", *words],
            env=self._surroundings,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        lines = done.stdout.splitlines()
        for line in [*lines, *([f"(exit {done.returncode})"] if done.returncode else [])]:
            print(f"     {line}", flush=True)
        return lines[0] if lines else ""

    def _await_started(self, run: str, name: str) -> None:
        """Wait until an agent called `name` runs below `run`. Watch before the first look, so that
        no start is missed."""
        with Client(self._socket) as client:
            client.send(Watch(id=0, run=run))
            while name not in self._running(client, run):
                client.arrived()

    def _running(self, client: Client, run: str) -> Sequence[str]:
        found = client.call(List(id=0, root=run), RunList).runs
        return [one.name for one in found if one.status.value == "running"]

    def _told_pids(self) -> list[int]:
        pids: list[int] = []
        # Open for writing too: otherwise the pipe ends when one process has written and the next
        # has not opened it.
        gate = os.open(self._directory / "gate", os.O_RDWR)
        try:
            while len(pids) < STUBBORN_PROCESSES and select.select([gate], [], [], STEP_SECONDS)[0]:
                pids += map(int, os.read(gate, 4096).split())
        finally:
            os.close(gate)
        return sorted(pids)


def _say(text: str) -> None:
    print(f"\n{text}\n", flush=True)


def _show(pids: Sequence[int], when: str) -> None:
    print(f"     {when}:")
    for pid in pids:
        print(f"       {_describe(pid)}", flush=True)


def _describe(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except FileNotFoundError:
        return f"pid {pid}: gone"
    return f"pid {pid}: {STATES.get(fields[0], fields[0])}, parent {fields[1]}, session {fields[3]}"
