"""The rows of the table: what is measured of each peer, and the floor that bare system calls
reach."""

from __future__ import annotations

import gc
import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from sfad.core.events import Event
from sfad.core.machine import Machine
from sfad.protocol import messages as m
from tests.bench import counts
from tests.bench.native import floor, numbers
from tests.bench.ours import SLEEP, TRUE, Sfad, directory
from tests.bench.peers import Argv, Load, Peer, Requests
from tests.core.load import BUSY
from tests.core.load import Load as CoreLoad
from tests.harness import wait_until

Start = Callable[..., AbstractContextManager[Peer]]
"""Starts a peer that will be asked for these runs: pairs of a command and how often."""
Figures = dict[str, float]
"""What was measured, with its unit as the last word. `N` stands for the size."""
CALLS = 100
"""Runs that are timed one by one."""
SECONDS = 1.0
"""How long clients ask."""


@dataclass(frozen=True)
class Row:
    """A row of the table. `sizes` are those of the table, `growth` those for its exponent, `of`
    what they count."""

    name: str
    of: str
    measure: Callable[[Start, int], Figures]
    sizes: tuple[int, ...]
    growth: tuple[int, ...] = ()
    floor: Callable[[int], Figures] | None = None
    peers: bool = True
    repeats: int = 3
    quick: tuple[int, ...] | None = None


def timed(call: Callable[[], object], times: int, most: float = 1.0) -> float:
    """Return the median milliseconds of so many calls, or of those that begin within `most`
    seconds."""
    call()
    taken: list[float] = []
    for _ in _within(times, most):
        began = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def _within(times: int, seconds: float = 2.0) -> Iterator[int]:
    """Count up to `times`, but after three only for so many seconds."""
    end = time.perf_counter() + seconds
    for number in range(times):
        if number < 3 or time.perf_counter() < end:
            yield number


def cpu(peer: Peer) -> float:
    """Return the seconds of processor time that its own processes have used."""
    return _spent(peer.pids())[0]


# ---- W1, W2: runs


def latency(start: Start, live: int) -> Figures:
    """Time runs one by one, beside some that sleep."""
    with directory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stamps:
        stamps.bind(str(place / "s"))
        stamps.settimeout(60)
        stamp = floor("stamp", place / "s")
        begun, known = [], []
        with start((stamp, CALLS), (TRUE, CALLS), (SLEEP, live)) as peer:
            peer.submit_all(SLEEP, live)
            for _ in _within(CALLS):
                asked = time.perf_counter_ns()
                run = peer.submit(stamp)
                begun.append(int.from_bytes(stamps.recv(8), sys.byteorder) - asked)
                peer.wait(run)
            for _ in _within(CALLS):
                asked = time.perf_counter_ns()
                peer.wait(peer.submit(TRUE))
                known.append(time.perf_counter_ns() - asked)
    return {
        "submit → started, ms": statistics.median(begun) / 1e6,
        "submit → end known, ms": statistics.median(known) / 1e6,
    }


def latency_floor(live: int) -> Figures:
    """Start and reap by posix_spawn(3) and waitpid(2)."""
    del live
    parts = {
        "submit → started, ms": numbers("started", CALLS),
        "submit → end known, ms": numbers("ended", CALLS, *TRUE),
    }
    return {what: statistics.median(taken) / 1e6 for what, taken in parts.items()}


def throughput(start: Start, count: int) -> Figures:
    """Time many runs at once."""
    with start((TRUE, count)) as peer:
        used, began = cpu(peer), time.perf_counter()
        peer.wait_all(peer.submit_all(TRUE, count))
        took = time.perf_counter() - began
        return {
            "N × /bin/true, runs/s": count / took,
            "daemon CPU of a run, ms": 1000 * (cpu(peer) - used) / count,
        }


def throughput_floor(count: int) -> Figures:
    """Keep a few at once, as many as are fastest."""
    return {
        "N × /bin/true, runs/s": max(
            1e9 * count / numbers("many", count, each, *TRUE)[0] for each in (2, 4)
        )
    }


# ---- W3: lists


@contextmanager
def filled(start: Start, total: int) -> Iterator[tuple[Peer, object]]:
    """Start a peer with so many runs, of which a few live; yield one of these."""
    live = max(1, min(50, total // 10))
    with start((TRUE, total - live), (SLEEP, live)) as peer:
        peer.wait_all(peer.submit_all(TRUE, total - live))
        yield peer, peer.submit_all(SLEEP, live)[0]


def lists(start: Start, total: int) -> Figures:
    """Time a full list, and the status of one run."""
    with filled(start, total) as (peer, run):
        figures = {
            "full list of N, ms": timed(peer.list, 50),
            "status among N, ms": timed(lambda: peer.status(run), 300),
        }
        if isinstance(peer, Sfad):
            assert len(peer.list()) == total
            figures["full list of N with limits, ms"] = timed(lambda: peer.list(limits=True), 50)
        return figures


def lists_floor(total: int) -> Figures:
    """Answer with as many bytes."""
    return {
        "full list of N, ms": answered(150 * total, 1)[1],
        "status among N, ms": answered(150, 1)[1],
    }


def page(start: Start, rows: int) -> Figures:
    """Time the default page: the live runs and the last fifty, out of a large ledger."""
    with start() as peer:
        assert isinstance(peer, Sfad)
        peer.remember(rows)
        run = peer.submit_all(SLEEP, 10)[0]
        return {
            "default page, N in the ledger, ms": timed(peer.page, 100),
            "status, N in the ledger, ms": timed(lambda: peer.status(run), 300),
        }


# ---- W4: stops


def stop(start: Start, count: int, stubborn: int = 0) -> Figures:
    """Time the stop of a tree of so many processes, of which 20 have escaped into sessions of their
    own."""
    mark = f"bench-{os.getpid()}-{time.monotonic_ns()}"
    tree = floor("tree", mark, count - 1, 20, stubborn)
    with start((tree, 1)) as peer:
        run = peer.submit(tree)
        try:
            return _stopped(lambda: peer.stop(run), mark, count)
        finally:
            for pid in _marked(mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)


def stop_stubborn(start: Start, count: int) -> Figures:
    """Time the stop if five of the processes ignore SIGTERM: SIGKILL follows after a second."""
    return {
        what.replace("of N", "of N, 5 stubborn"): figure
        for what, figure in stop(start, count, 5).items()
    }


def stop_floor(count: int) -> Figures:
    """Kill a cgroup, where one can be made."""
    own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    for mount in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        group = Path(mount, own, f"bench-{os.getpid()}")
        if (group.parent / "cgroup.procs").exists() and os.access(group.parent, os.W_OK):
            return _killed(group, count)
    return {}


def _killed(group: Path, count: int) -> Figures:
    group.mkdir()
    mark = group.name
    words = [
        "/bin/sh",
        "-c",
        f'echo $$ >{group}/cgroup.procs; exec "$@"',
        "sh",
        *floor("tree", mark, count - 1, 20, 0),
    ]
    with subprocess.Popen(words, start_new_session=True):
        found = _stopped(lambda: (group / "cgroup.kill").write_text("1"), mark, count)
    wait_until(
        lambda: "populated 0" in (group / "cgroup.events").read_text(), "the cgroup is empty"
    )
    group.rmdir()
    return found


def _stopped(act: Callable[[], object], mark: str, count: int) -> Figures:
    wait_until(lambda: len(_marked(mark)) == count, "the tree is there")
    pidfds = [os.pidfd_open(pid) for pid in _marked(mark)]
    began = time.perf_counter()
    act()
    took = time.perf_counter() - began
    alive = select.poll()
    for pidfd in pidfds:
        alive.register(pidfd, select.POLLIN)
    left = len(pidfds)
    end = time.perf_counter() + 0.5
    while left and time.perf_counter() < end:
        for pidfd, _ in alive.poll(1000 * (end - time.perf_counter())):
            alive.unregister(pidfd)
            left -= 1
            took = max(took, time.perf_counter() - began) if not left else took
    for pidfd in pidfds:
        os.close(pidfd)
    return {"stop of N, ms": 1000 * took, "survivors of N": left}


def _marked(mark: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            if (
                mark.encode()
                in Path("/proc", str(int(name)), "cmdline").read_bytes().split(b"\0")[2:3]
            ):
                found.append(int(name))
    return found


# ---- W5: output


def output(start: Start, megabytes: int) -> Figures:
    """Time a run that writes, until all is in its file."""
    found = {}
    spew = floor("spew", megabytes * 1_000_000)
    for metered in ("", " with a meter"):
        with start((spew, 1)) as peer:
            if metered and not isinstance(peer, Sfad):
                break
            used, began = cpu(peer), time.perf_counter()
            run = (
                peer.submit(spew, meter="claude")
                if isinstance(peer, Sfad) and metered
                else peer.submit(spew)
            )
            file = peer.output(run)
            end = began + 20
            while not file.exists() or file.stat().st_size < megabytes * 1_000_000:
                assert time.perf_counter() < end, "output is missing"
                time.sleep(0.001)
            found[f"N MB{metered}, MB/s"] = megabytes / (time.perf_counter() - began)
            if isinstance(peer, Sfad):
                peer.wait(run)
            found[f"N MB{metered}, daemon CPU, s"] = cpu(peer) - used
    return found


def output_floor(megabytes: int) -> Figures:
    """Let the process write to the file."""
    with directory() as place, (place / "out").open("wb") as file:
        began = time.perf_counter()
        subprocess.run(floor("spew", megabytes * 1_000_000), stdout=file, check=True)
        return {"N MB, MB/s": megabytes / (time.perf_counter() - began)}


# ---- W6: idle


def idle(start: Start, runs: int) -> Figures:
    """Look at the peer's own processes while nothing happens."""
    with start((SLEEP, runs)) as peer:
        peer.submit_all(SLEEP, runs)
        time.sleep(SECONDS)
        pids = peer.pids()
        before = _spent(pids)
        time.sleep(2 * SECONDS)
        used, woken = (
            (now - then) / (2 * SECONDS) for now, then in zip(_spent(pids), before, strict=True)
        )
        resident = sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20
        return {
            "N idle: RSS, MiB": resident,
            "N idle: CPU, %": 100 * used,
            "N idle: wake-ups/s": woken,
        }


def idle_floor(runs: int) -> Figures:
    """A process that sleeps beside its children."""
    with subprocess.Popen(floor("sleepers", runs), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        resident = psutil.Process(process.pid).memory_info().rss / 2**20
        process.terminate()
    return {"N idle: RSS, MiB": resident}


def _spent(pids: Sequence[int]) -> tuple[float, int]:
    """Return the seconds of processor time of these processes, and how often they slept, in threads
    that still are."""
    used = slept = 0
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()):
        with suppress(OSError):
            used += int((task / "schedstat").read_text().split()[0])
            slept += int(
                (task / "status").read_text().partition("voluntary_ctxt_switches:")[2].split()[0]
            )
    return used / 1e9, slept


# ---- W7: many clients


def clients(start: Start, count: int) -> Figures:
    """Let clients ask for the status of one run, and for a list of 100, each as soon as it has its
    answer."""
    with filled(start, 100) as (peer, run):
        return _rates(
            {kind: loaded(peer.load(kind, run), count, peer.env) for kind in ("status", "list")}
        )


def clients_floor(count: int) -> Figures:
    """Answer with as many bytes."""
    return _rates({"status": answered(150, count), "list": answered(15_000, count)})


def _rates(found: dict[str, tuple[float, float, float]]) -> Figures:
    rates = {f"N clients: {kind}/s": rate for kind, (rate, _, _) in found.items()}
    return rates | {
        f"N clients: {kind}, p99, ms": slowest for kind, (_, _, slowest) in found.items()
    }


def loaded(
    load: Load, count: int, env: Mapping[str, str] | None = None
) -> tuple[float, float, float]:
    """Return answers a second, and the median and the 99th percentile of one in milliseconds."""
    if isinstance(load, Requests):
        with directory() as place:
            for file in ("greeting", "request"):
                (place / file).write_bytes(getattr(load, file))
            found = numbers(
                "ask",
                load.path,
                load.framing,
                place / "greeting",
                place / "request",
                count,
                SECONDS,
            )
    elif isinstance(load, list):
        found = numbers("call", count, SECONDS, *load, env=env)
    else:
        taken = sorted(int(1e9 * each) for each in load(count, SECONDS))
        found = [
            len(taken),
            int(1e9 * SECONDS),
            taken[len(taken) // 2],
            taken[int(len(taken) * 0.99)],
        ]
    return 1e9 * found[0] / found[1], found[2] / 1e6, found[3] / 1e6


def answered(size: int, count: int) -> tuple[float, float, float]:
    """Return what `loaded` returns, of a server in C that answers with so many bytes."""
    with (
        directory() as place,
        subprocess.Popen(floor("serve", place / "s", size), stdout=subprocess.PIPE) as server,
    ):
        assert server.stdout is not None
        server.stdout.readline()
        try:
            return loaded(Requests(place / "s", "frame", b"", b"request"), count)
        finally:
            server.terminate()


# ---- W8: the command line

HANDSHAKE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    b'"clientInfo":{"name":"bench","version":"1"}}}\n'
)
"""What a client of `sfactl mcp` says before it leaves."""


def commands(start: Start, rounds: int) -> Figures:
    """Time command lines in turn."""
    with filled(start, 10) as (peer, run):
        words = peer.commands(run)
        if isinstance(peer, Sfad):
            peer.daemon.sfactl("shim", "install", "true")
            shim = str(peer.daemon.state_dir / "shims/true")
            words["shim"] = [
                "/usr/bin/env",
                f"SFA_RUN_ID={run}",
                f"SFA_SOCKET={peer.daemon.socket}",
                shim,
            ]
            words["mcp"] = [*words["list"][:-1], "mcp"]
        return _called(words, peer.env, rounds)


def commands_floor(rounds: int) -> Figures:
    """Start the interpreter."""
    kinds = ("list", "status", "spawn", "run", "report", "shim", "mcp")
    bare = _called({"python": [sys.executable, "-c", "pass"]}, dict(os.environ), rounds)
    return {what.replace("python", kind): figure for kind in kinds for what, figure in bare.items()}


def _called(words: dict[str, Argv], env: dict[str, str], rounds: int) -> Figures:
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in words}
    for _ in range(rounds + 1):
        for kind, argv in words.items():
            used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            said = HANDSHAKE if kind == "mcp" else None
            subprocess.run(
                argv,
                env=env,
                input=said,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            took, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            taken[kind].append((took, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime))
    found: Figures = {}
    for kind, each in taken.items():
        both = (1000 * statistics.median(column) for column in zip(*each[1:], strict=True))
        found |= dict(zip((f"call of {kind}, ms", f"call of {kind}, CPU, ms"), both, strict=True))
    return found


# ---- recovery, the core, counts


def recovery(start: Start, live: int) -> Figures:
    """Kill the daemon beside live runs. It is ready when it has adopted them."""
    with start() as peer:
        assert isinstance(peer, Sfad)
        peer.submit_all(SLEEP, live)
        peer.daemon.kill()
        began = time.perf_counter()
        peer.daemon.restart()
        serving = time.perf_counter() - began
        wait_until(
            lambda: peer.client.call(m.DaemonInfo(id=0), m.DaemonStatus).adopted == live,
            "all are adopted",
        )
        return {
            "of N, serving, s": serving,
            "of N, all adopted, s": time.perf_counter() - began,
            "of N, CPU, s": cpu(peer),
        }


def core(start: Start, runs: int) -> Figures:
    """Simulate a crowd of agents. Then feed another machine with the same events: the core
    alone."""
    del start
    load = CoreLoad()
    began = time.process_time()
    load.until(runs)
    both = load.events / (time.process_time() - began)
    events: list[Event] = []
    CoreLoad(fed=events).until(runs)
    machine = Machine(BUSY)
    gc.freeze()  # the daemon keeps no events, so its garbage collector has none to look at
    began = time.process_time()
    for event in events:
        machine.handle(event)
    alone = len(events) / (time.process_time() - began)
    gc.unfreeze()
    assert machine.admitted == load.machine.admitted
    return {"events/s": alone, "events/s, the load inside": both}


def calls(start: Start, live: int) -> Figures:
    """Count the daemon's calls for a run beside others that sleep."""
    del start
    found = counts.calls(live)
    return {
        f"{what} of a run, {load}": cost
        for what in ("Python calls", "C calls")
        for load, cost in found[what].items()
    }


DOUBLING = (125, 250, 500, 1000)

ROWS = (
    Row("W1", "live runs beside it", latency, (0,), DOUBLING, latency_floor),
    Row("W2", "runs", throughput, (1000,), (250, 500, 1000, 2000), throughput_floor, quick=(300,)),
    Row(
        "W3", "runs", lists, (1000,), (500, 1000, 2000, 4000), lists_floor, repeats=1, quick=(300,)
    ),
    Row("W3", "runs", lists, (5000,), (), lists_floor, peers=False, repeats=1, quick=()),
    Row("W3", "rows", page, (100_000,), (12_500, 25_000, 50_000, 100_000), peers=False, repeats=1),
    Row("W4", "processes", stop, (201,), (100, 200, 400, 800), stop_floor),
    Row("W4", "processes", stop_stubborn, (201,), repeats=1),
    Row("W5", "MB", output, (200,), (50, 100, 200, 400), output_floor, quick=(50,)),
    Row("W6", "runs", idle, (0, 500), DOUBLING, idle_floor, repeats=1, quick=(0, 100)),
    Row("W7", "clients", clients, (50,), (25, 50, 100, 200), clients_floor),
    Row("W8", "rounds", commands, (5,), (), commands_floor, quick=(3,)),
    Row("recovery", "live runs", recovery, (1000,), DOUBLING, peers=False, quick=(200,)),
    Row(
        "core",
        "runs",
        core,
        (100_000,),
        (12_500, 25_000, 50_000, 100_000),
        peers=False,
        repeats=1,
        quick=(10_000,),
    ),
    Row("counts", "live runs beside it", calls, (), DOUBLING, peers=False),
)
