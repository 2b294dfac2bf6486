"""Breaks each part of a fleet of three, and says what followed: `python -m tests.fleet.breaking
[--seconds 15 60 90] [--longer] [--only head raylet …] [--at-once 4] [--redis] [--keep DIRECTORY]`,
as root.

Each node is like a machine: it has a network and a process namespace, with its own address, daemon,
and Ray, which the daemon's keeper starts again. A part is broken for so many seconds. Meanwhile the
questions of n1 are timed; then the time is taken until all nodes are ready again. Each run writes a
line when it starts, so that one that ran twice is seen.

A fleet takes 1.5 GiB. With `--at-once`, each fault has a fleet of its own, so many at a time:
right for long faults, and not for how long questions take."""

from __future__ import annotations

import itertools
import json
import math
import os
import secrets
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

BIN = Path(sys.executable).parent
NAMES = ("n1", "n2", "n3")
NET = "10.77.{}"
"""The network of a fleet, by its number."""
LEASE = 20
READY = 30.0
"""Seconds within which all is to be ready again."""
SLOWER = 1.0
"""Seconds by which a question or a stop may be slower than without the fault, on a machine that has
nothing else to do."""
SOON = 10.0
"""Seconds within which it is told what is broken: two heartbeats."""
SLEEPS = 30_000
"""Seconds that the runs of the first fleet sleep at least: by that a run's process is found."""
MARK = "SFAD_TEST_BREAKING"


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


class Node:
    def __init__(
        self,
        name: str,
        number: int,
        directory: Path,
        token: Path,
        mark: str,
        net: str,
        env: dict[str, str],
    ) -> None:
        """`env`: more of the daemon's environment, and so of Ray's."""
        self._env, self._net = env, net
        self.name, self.directory, self._mark = name, directory / name, mark
        self.space, self.link = f"fb{mark[:4]}{name}", f"fb{mark[:4]}{number}"
        self.address = f"{net}.{number}"
        self.directory.mkdir()
        self.socket = self.directory / "s"
        (self.directory / "sfad.toml").write_text(
            f'[fleet]\naddress = "{net}.1:6379"\nnode = "{name}"\nlease = {LEASE}\n'
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
            ["route", "add", "default", "via", f"{self._net}.254"],
        ):
            ip("-n", self.space, *words)

    def start(self) -> None:
        own, ray = self.directory / "r", self.directory.parent / "r"
        for each in (own, ray):
            each.mkdir(exist_ok=True)
        env = (
            os.environ
            | self._env
            | {
                MARK: self._mark,
                "RAY_TMPDIR": str(ray),
                "RAY_USAGE_STATS_ENABLED": "0",
            }
        )
        words = [sys.executable, "-m", "sfad", "serve", "--socket", str(self.socket)]
        words += ["--state-dir", str(self.directory / "state")]
        words += ["--config", str(self.directory / "sfad.toml")]
        # process 1 of the machine: it starts the daemon again, and reaps what others leave; the
        # head says which directory Ray uses on all machines
        init = self.directory / "init"
        init.write_text(
            f"mount --bind {own} {ray}\nmount -t tmpfs tmpfs /dev/shm\n"
            f"while :; do {shlex.join(words)}; sleep 1; done\n"
        )
        line = ["ip", "netns", "exec", self.space]
        line += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", str(init)]
        with (self.directory / "log").open("ab") as log:
            self.daemon = subprocess.Popen(line, env=env, stdout=log, stderr=log)

    def sfactl(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert self.daemon is not None
        (init,) = psutil.Process(self.daemon.pid).children()
        at = words.index("--") if "--" in words else len(words)
        line = ["nsenter", "--target", str(init.pid), "--pid", "--mount", "--net"]
        line += [str(BIN / "sfactl"), *words[:at], "--socket", str(self.socket), *words[at:]]
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
def without(node: Node, keeper: str, *parts: str) -> Iterator[None]:
    """Kill parts which nothing starts again meanwhile."""
    keepers = node.processes(keeper)
    assert keepers, keeper
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
_KEEPER, _DAEMON = "fleet.ray.keeping", "-m sfad serve"

FAULTS = {
    "actor": lambda nodes: standing(nodes["n3"], "ray::NodeActor"),
    "daemon": lambda nodes: standing(nodes["n3"], _DAEMON),
    "dead daemon": lambda nodes: without(nodes["n3"], "/n3/init", _DAEMON),
    "helper": lambda nodes: killed(nodes["n3"], _KEEPER),
    "network": lambda nodes: cut(nodes["n3"]),
    "raylet": lambda nodes: without(nodes["n3"], _KEEPER, "raylet/raylet"),
    "head": lambda nodes: without(nodes["n1"], _KEEPER, *_RAY),
}
MISSING = {
    "actor": "actor", "daemon": "daemon", "dead daemon": "daemon", "network": "actor",
    "raylet": "raylet or actor",
}  # fmt: skip
"""What n1 is to say that n3 lacks."""
UNREACHED = {"actor", "network"}
"""Faults with which no other node reaches n3's daemon, which lives: it keeps to leases."""


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


class Timed:
    """How long calls of a node's client take at most, and how much longer mostly than one that is
    about this node alone: on a busy machine all take longer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.took: dict[str, float] = {}
        self._longer: dict[str, list[float]] = {}

    def call(self, line: str, *words: str) -> None:
        here = timed(lambda: self._node.sfactl("list"))
        took = timed(lambda: self._node.sfactl(*line.split(), *words))
        self.took[line] = max(took, self.took.get(line, 0.0))
        self._longer.setdefault(line, []).append(took - here)

    def longer(self) -> dict[str, float]:
        return {line: statistics.median(each) for line, each in self._longer.items()}

    def ask(self) -> None:
        for line in ("list --fleet", "fleet nodes", "fleet status", "summary --fleet"):
            self.call(line)


class Run:
    """A run that notes when it starts, and sleeps."""

    def __init__(self, directory: Path, seconds: int) -> None:
        self.seconds = seconds
        self._begun = directory / f"begun-{self.seconds}"
        self.command = f"echo begun >> {self._begun}; exec sleep {self.seconds}"

    def spawn(self, node: Node, *words: str) -> str:
        run = node.sfactl("spawn", "--quiet", *words, "--", "sh", "-c", self.command)
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    def starts(self) -> int:
        return len(self._begun.read_text().splitlines()) if self._begun.exists() else 0

    def alive(self) -> int:
        sleeping = ["sleep", str(self.seconds)]
        return sum(each.info["cmdline"] == sleeping for each in psutil.process_iter(["cmdline"]))


def until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
    return bool(condition())


def broken(
    nodes: dict[str, Node], what: str, seconds: float, directory: Path, sleeps: Iterator[int]
) -> dict[str, Any]:
    """Break one part for a while. Return what followed. `sleeps`: for how many seconds each run
    sleeps."""
    n1 = nodes["n1"]
    first, far, near, child, late = (Run(directory, next(sleeps)) for _ in range(5))
    names = [
        run.spawn(n1, "--on", node) for run, node in ((first, "n3"), (far, "n3"), (near, "n2"))
    ]
    spawn = f"{BIN / 'sfactl'} spawn --on n3 -- sh -c '{child.command}'"
    parent = n1.sfactl("spawn", "--quiet", "--", "sh", "-c", f"{spawn}; exec sleep 3000")
    names.append(parent.stdout.strip())
    for run in (first, far, near, child):
        assert until(run.starts, 60)
    found: dict[str, Any] = {"part": what, "seconds": seconds}
    until(lambda: nodes["n2"].sfactl("list", "--fleet").returncode == 0, 60)
    before, during = Timed(n1), Timed(n1)
    for _ in range(3):
        before.ask()
    before.call("stop", names[0])
    began = time.monotonic()
    with FAULTS[what](nodes):
        time.sleep(min(SOON, seconds / 2))
        found["n3 lacks"] = lacks(n1).get("n3")
        for _ in range(3):
            during.ask()
        names.append(late.spawn(n1, "--on", "n3"))
        during.call("stop", names[1])
        while (left := began + seconds - time.monotonic()) > SOON:
            time.sleep(5.0)
            during.ask()
        time.sleep(max(left, 0.0))
        if what == "head":
            listed = nodes["n2"].sfactl("list", "--fleet", "--json").stdout
            found["n2 misses"] = json.loads(listed)["unanswered"]
        # the lease, the grace of a stop, and what a busy machine is late by
        over = what in UNREACHED and seconds > LEASE + 30
        found["unmanaged"] = child.alive() if over else 0
    found["ready after s"] = round(until_ready(n1, 240), 1)
    usual = before.longer()
    longer = {line: now - usual[line] for line, now in during.longer().items()}
    found["slower by s"] = {line: round(more, 2) for line, more in longer.items()}
    found["longest stop s"] = round(during.took.pop("stop"), 2)
    found["longest question s"] = round(max(during.took.values()), 2)
    until(late.starts, 60)
    for name in names:
        n1.sfactl("stop", name)
    runs = (first, far, near, child, late)
    found["starts"] = [run.starts() for run in runs]
    until(lambda: not any(run.alive() for run in runs), 30)
    found["left alive"] = sum(run.alive() for run in runs)
    return found


def told(found: dict[str, Any]) -> str:
    """Return the line that says what followed."""
    twice, broke = sum(count > 1 for count in found["starts"]), wrong(found)
    slower = ", ".join(f"{line} {more:+}" for line, more in found["slower by s"].items())
    return (
        f"{found['part']} for {found['seconds']:g} s: "
        f"ready again after {found['ready after s']} s, "
        f"longest question {found['longest question s']} s, "
        f"longest stop {found['longest stop s']} s "
        f"(longer than before by s: {slower}), "
        f"twice {twice}, unmanaged {found['unmanaged'] + found['left alive']}"
        f"{'; WRONG: ' + ', '.join(broke) if broke else ''}"
    )


def wrong(found: dict[str, Any]) -> list[str]:
    """Return which promises were not kept."""
    lacks_now = MISSING.get(found["part"])
    return [
        words
        for words, kept in (
            ("something ran twice", max(found["starts"]) <= 1),
            ("something never ran", min(found["starts"]) == 1),
            ("something lived after its lease", found["unmanaged"] == 0),
            ("something was left alive", found["left alive"] == 0),
            (f"n3 lacks {found['n3 lacks']}", lacks_now is None or found["n3 lacks"] in lacks_now),
            ("n2 and n3 do not reach each other", found.get("n2 misses", ["n1"]) == ["n1"]),
            ("a question or a stop waited", max(found["slower by s"].values()) < SLOWER),
            ("it was not ready in time", found["ready after s"] < READY),
        )
        if not kept
    ]


@contextmanager
def redis(directory: Path, net: str) -> Iterator[dict[str, str]]:
    """Run a Redis beside the nodes. Yield the variables with which Ray keeps its state there."""
    address = f"{net}.254"
    words = ["redis-server", "--bind", address, "--port", "6390", "--protected-mode", "no"]
    server = subprocess.Popen(
        [*words, "--dir", str(directory), "--appendonly", "yes"], stdout=subprocess.DEVNULL
    )
    try:
        yield {"RAY_REDIS_ADDRESS": f"{address}:6390"}
    finally:
        server.terminate()
        server.wait()


def keep_logs(directory: Path, to: Path) -> None:
    for path in [*directory.glob("*/log"), *directory.rglob("*.log"), *directory.rglob("*.out")]:
        if path.is_file() and not path.is_symlink():
            copy = to / path.relative_to(directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def beside(fleets: int, parts: list[str], words: list[str]) -> int:
    """Break each part in a fleet of its own, so many at a time. Return the highest exit code."""

    def one(number: int) -> int:
        line = [sys.executable, "-m", __spec__.name, *words, "--only", parts[number]]
        line += ["--at-once", "1", "--number", str(number)]
        return subprocess.run(line, check=False).returncode

    with ThreadPoolExecutor(fleets) as pool:
        return max(pool.map(one, range(len(parts))))


def main() -> int:
    """1 if a promise was not kept."""
    broke = False
    parser = ArgumentParser()
    parser.add_argument("--seconds", type=float, nargs="+", default=[15.0, 60.0, 90.0])
    parser.add_argument("--longer", action="store_true", help="ten minutes each, too")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--redis", action="store_true", help="Ray keeps its state in a Redis")
    parser.add_argument("--keep", type=Path, help="leave the logs of daemons and of Ray there")
    parser.add_argument("--at-once", type=int, default=1, metavar="FLEETS")
    parser.add_argument("--number", type=int, default=0, help="of the fleet, on this machine")
    given = parser.parse_args()
    if given.at_once > 1:
        return beside(given.at_once, given.only, sys.argv[1:])
    net, sleeps = NET.format(given.number), itertools.count(SLEEPS + 1000 * given.number)
    mark = secrets.token_hex(4)
    directory = Path(tempfile.mkdtemp(prefix="fb", dir="/tmp"))  # paths of Ray's sockets are short
    token = directory / "token"
    token.write_text(secrets.token_hex(32))
    bridge = f"fb{mark[:4]}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        if given.keep is not None:
            stack.callback(keep_logs, directory, given.keep)
        ip("link", "add", bridge, "type", "bridge")
        stack.callback(ip, "link", "del", bridge)
        ip("addr", "add", f"{net}.254/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        env = stack.enter_context(redis(directory, net)) if given.redis else {}
        nodes = {
            name: Node(name, number, directory, token, mark, net, env)
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
        for seconds in [*given.seconds, *([600.0] if given.longer else [])]:
            for what in given.only:
                found = broken(nodes, what, seconds, directory, sleeps)
                broke |= bool(wrong(found))
                print(f"{time.strftime('%H:%M:%S')} {told(found)}", flush=True)
    return int(broke)


if __name__ == "__main__":
    sys.exit(main())
