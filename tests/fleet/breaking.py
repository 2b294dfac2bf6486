"""Breaks each part of a fleet of three, and says what followed: `python -m tests.fleet.breaking
[--seconds 15 60 90 600] [--only head raylet …] [--redis]`, as root.

Each node is a network namespace of this machine, with its own address, daemon, and Ray, which the
daemon's keeper starts again. A part is broken for so many seconds. Meanwhile the questions of n1
are timed; then the time is taken until all nodes are ready again. Each run writes a line when it
starts, so that one that ran twice is seen.

The nodes see each other's processes. So `ray start --head` refuses to start while raylets of the
other nodes live, which on machines of their own it does not see: without a Redis, a head is back a
minute after it went at the earliest, and with one only if its Ray is started by hand in a process
namespace (`unshare --pid --fork`, and `mount -t proc proc /proc`)."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

BIN = Path(sys.executable).parent
NAMES = ("n1", "n2", "n3")
NET = "10.77.0"
LEASE = 20
READY = 30.0
"""Seconds within which all is to be ready again."""
SLOWER, STOP = 1.0, 3.0
"""Seconds by which a question may be slower than without the fault, and that a stop may take, on
a machine that has nothing else to do."""
MARK = "SFAD_TEST_BREAKING"


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


class Node:
    def __init__(
        self, name: str, number: int, directory: Path, token: Path, mark: str, env: dict[str, str]
    ) -> None:
        """`env`: more of the daemon's environment, and so of Ray's."""
        self._env = env
        self.name, self.directory, self._mark = name, directory / name, mark
        self.space, self.link = f"fb{mark[:4]}{name}", f"fb{mark[:4]}{number}"
        self.address = f"{NET}.{number}"
        self.directory.mkdir()
        self.socket = self.directory / "s"
        (self.directory / "sfad.toml").write_text(
            f'[fleet]\naddress = "{NET}.1:6379"\nnode = "{name}"\nlease = {LEASE}\n'
            f'start = "{"head" if number == 1 else "node"}"\ntoken_file = "{token}"\n'
        )
        self.daemon: subprocess.Popen[bytes] | None = None

    def join(self, bridge: str) -> None:
        ip("netns", "add", self.space)
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("link", "set", self.link, "master", bridge, "up")
        for words in (
            ["addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["link", "set", "lo", "up"],
            ["link", "set", "eth0", "up"],
            ["route", "add", "default", "via", f"{NET}.254"],
        ):
            ip("-n", self.space, *words)

    def start(self) -> None:
        env = (
            os.environ
            | self._env
            | {
                MARK: self._mark,
                "RAY_TMPDIR": str(self.directory / "r"),
                "RAY_USAGE_STATS_ENABLED": "0",
            }
        )
        (self.directory / "r").mkdir(exist_ok=True)
        line = ["ip", "netns", "exec", self.space, sys.executable, "-m", "sfad", "serve"]
        line += ["--socket", str(self.socket), "--state-dir", str(self.directory / "state")]
        line += ["--config", str(self.directory / "sfad.toml")]
        with (self.directory / "log").open("ab") as log:
            self.daemon = subprocess.Popen(line, env=env, stdout=log, stderr=log)

    def sfactl(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = [str(BIN / "sfactl"), *words, "--socket", str(self.socket)]
        if "--" in words:
            at = words.index("--")
            line = [line[0], *words[:at], "--socket", str(self.socket), *words[at:]]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)

    def processes(self, *parts: str) -> list[psutil.Process]:
        """Return the processes in the node's network whose command has one of these parts."""
        here = os.stat(f"/run/netns/{self.space}").st_ino
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == here and any(
                    part in " ".join(process.cmdline()) for part in parts
                ):
                    found.append(process)
        return found

    def end(self) -> None:
        for _ in range(3):
            found = self.processes("")
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, timeout=10)
        if self.daemon is not None:
            self.daemon.wait()
        ip("netns", "del", self.space, check=False)


def signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


@contextmanager
def without_ray(node: Node, *parts: str) -> Iterator[None]:
    """Kill parts of Ray, which nothing starts again meanwhile."""
    keepers = node.processes("fleet.ray.keeping")
    signal_all(keepers, signal.SIGSTOP)
    signal_all(node.processes(*parts), signal.SIGKILL)
    try:
        yield
    finally:
        signal_all(keepers, signal.SIGCONT)


@contextmanager
def standing(node: Node, *parts: str) -> Iterator[None]:
    found = node.processes(*parts)
    assert found, parts
    signal_all(found, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(found, signal.SIGCONT)


@contextmanager
def cut(node: Node) -> Iterator[None]:
    ip("link", "set", node.link, "down")
    try:
        yield
    finally:
        ip("link", "set", node.link, "up")


@contextmanager
def killed(node: Node, *parts: str) -> Iterator[None]:
    signal_all(node.processes(*parts), signal.SIGKILL)
    yield


_RAY = ("/ray/", "ray::", "bin/ray start")

FAULTS = {
    "actor": lambda nodes: standing(nodes["n3"], "ray::NodeActor"),
    "daemon": lambda nodes: standing(nodes["n3"], "-m sfad serve"),
    "helper": lambda nodes: killed(nodes["n3"], "fleet.ray.keeping"),
    "network": lambda nodes: cut(nodes["n3"]),
    "raylet": lambda nodes: without_ray(nodes["n3"], "raylet/raylet"),
    "head": lambda nodes: without_ray(nodes["n1"], *_RAY),
}
MISSING = {"actor": "actor", "daemon": "daemon", "network": "actor", "raylet": "raylet or actor"}
"""What n1 is to say that n3 lacks."""


def lacks(node: Node) -> dict[str, str | None]:
    told = json.loads(node.sfactl("fleet", "nodes", "--json").stdout or '{"nodes":[]}')
    return {
        each["name"]: each["missing"] or (None if each["version"] else "not known")
        for each in told["nodes"]
    }


def until_ready(node: Node, seconds: float) -> float:
    """Return after how long all nodes are ready; infinity if that takes longer than so many
    seconds."""
    began = time.monotonic()
    while (found := lacks(node)) != dict.fromkeys(NAMES):
        if time.monotonic() - began > seconds:
            print(f"they lack: {found}", flush=True)
            return math.inf
        time.sleep(0.5)
    return time.monotonic() - began


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def questions(node: Node) -> dict[str, float]:
    """Return how long each takes."""
    lines = ("list --fleet", "fleet nodes", "fleet status", "summary --fleet")
    return {line: timed(lambda line=line: node.sfactl(*line.split())) for line in lines}  # type: ignore[misc]


def spawned(node: Node, begun: Path, *words: str) -> str:
    run = node.sfactl(
        "spawn", "--quiet", *words, "--", "sh", "-c", f"echo $$ >> {begun}; exec sleep 3000"
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def broken(nodes: dict[str, Node], what: str, seconds: float, directory: Path) -> dict[str, Any]:
    """Break one part for a while. Return what followed."""
    n1 = nodes["n1"]
    begun = [directory / f"{what}-{seconds:g}-{number}" for number in range(3)]
    far, near, late = begun
    runs = [spawned(n1, far, "--on", "n3"), spawned(n1, near, "--on", "n2")]
    deadline = time.monotonic() + 60
    while not (far.exists() and near.exists()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    before = questions(n1)
    found: dict[str, Any] = {"part": what, "seconds": seconds}
    with FAULTS[what](nodes):
        ends = time.monotonic() + seconds
        time.sleep(min(10.0, seconds / 2))  # two heartbeats
        found["n3 lacks"] = lacks(n1).get("n3")
        during = questions(n1)
        found["slower by at most s"] = round(max(during[each] - before[each] for each in before), 2)
        runs.append(spawned(n1, late, "--on", "n3"))
        stop = n1.sfactl("stop", runs[0])
        found["stop"] = stop.returncode
        found["s of the stop"] = round(timed(lambda: n1.sfactl("stop", runs[0])), 2)
        time.sleep(max(0.0, ends - time.monotonic()))
    found["ready after s"] = round(until_ready(n1, 180), 1)
    deadline = time.monotonic() + 60
    while not late.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    for run in runs:
        n1.sfactl("stop", run)
    found["starts"] = [len(each.read_text().splitlines()) if each.exists() else 0 for each in begun]
    alive = [int(pid) for each in begun if each.exists() for pid in each.read_text().split()]
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, alive)) and time.monotonic() < deadline:
        time.sleep(0.2)
    found["left alive"] = sum(map(psutil.pid_exists, alive))
    return found


def wrong(found: dict[str, Any]) -> list[str]:
    """Return which promises were not kept."""
    lacks_now = MISSING.get(found["part"])
    return [
        words
        for words, kept in (
            ("something ran twice, or never", found["starts"] == [1, 1, 1]),
            ("something was left alive", found["left alive"] == 0),
            ("n3 lacks something else", lacks_now is None or found["n3 lacks"] in lacks_now),
            ("a question waited", found["slower by at most s"] < SLOWER),
            ("a stop waited", found["s of the stop"] < STOP),
            ("it was not ready in time", found["ready after s"] < READY),
        )
        if not kept
    ]


@contextmanager
def redis(directory: Path) -> Iterator[dict[str, str]]:
    """Run a Redis beside the nodes. Yield the variables with which Ray keeps its state there."""
    address = f"{NET}.254"
    words = ["redis-server", "--bind", address, "--port", "6390", "--protected-mode", "no"]
    server = subprocess.Popen(
        [*words, "--dir", str(directory), "--appendonly", "yes"], stdout=subprocess.DEVNULL
    )
    try:
        # a raylet that does not reach the head ends after a minute by itself
        yield {
            "RAY_REDIS_ADDRESS": f"{address}:6390",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        }
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    """1 if a promise was not kept."""
    broke = False
    parser = ArgumentParser()
    parser.add_argument("--seconds", type=float, nargs="+", default=[15.0, 60.0, 90.0, 600.0])
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--redis", action="store_true", help="Ray keeps its state in a Redis")
    given = parser.parse_args()
    mark = secrets.token_hex(4)
    directory = Path(tempfile.mkdtemp(prefix="fb", dir="/tmp"))  # paths of Ray's sockets are short
    token = directory / "token"
    token.write_text(secrets.token_hex(32))
    bridge = f"fb{mark[:4]}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        ip("link", "add", bridge, "type", "bridge")
        stack.callback(ip, "link", "del", bridge)
        ip("addr", "add", f"{NET}.254/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        env = stack.enter_context(redis(directory)) if given.redis else {}
        nodes = {
            name: Node(name, number, directory, token, mark, env)
            for number, name in enumerate(NAMES, 1)
        }
        for node in nodes.values():
            stack.callback(node.end)
            node.join(bridge)
            node.start()
        deadline = time.monotonic() + 60
        while not all(node.socket.exists() for node in nodes.values()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        print(f"three machines are ready after {until_ready(nodes['n1'], 600):.0f} s", flush=True)
        for seconds in given.seconds:
            for what in given.only:
                found = broken(nodes, what, seconds, directory)
                found["wrong"] = wrong(found)
                broke |= bool(found["wrong"])
                print(json.dumps(found), flush=True)
    return int(broke)


if __name__ == "__main__":
    sys.exit(main())
