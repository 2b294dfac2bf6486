"""Agents that attack their supervisor. Plain Python, so that no compiler is needed.

    python attacks.py ATTACK ARGUMENT…

Each prints `READY` once it has done what it does, and gives up by itself after two minutes.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

LIFE = 120
UNIFIED = next(line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup2 " in line)  # noqa: SIM115

_PTRACE_SEIZE = 0x4206
_libc = ctypes.CDLL(None, use_errno=True)


def ready(*words: object) -> None:
    """Print that the attack is done."""
    print("READY", *words, flush=True)


def nap() -> None:
    """Sleep until a signal ends the process, at most two minutes."""
    signal.alarm(LIFE)
    while True:
        signal.pause()


def orphan(then: Callable[[], None]) -> None:
    """Fork a child without a parent in the run, in a session of its own, that calls `then`."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            wait_for(lambda: os.getppid() != parent[0])
            then()
            os._exit(0)
        os._exit(0)
    os.wait()


parent = [os.getpid()]


def wait_for(condition: Callable[[], object]) -> None:
    """Poll until the condition holds."""
    while not condition():
        time.sleep(0.001)


def own_cgroup() -> str:
    """Return the directory of the cgroup of this process."""
    path = next(line for line in open("/proc/self/cgroup") if line.startswith("0::"))[3:].strip()  # noqa: SIM115
    return UNIFIED + path


def leave_cgroup() -> None:
    """Move to the cgroup above the daemon's own. Under tags there is none to leave."""
    if "/sfad-" in own_cgroup():
        with open(own_cgroup().split("/sfad-")[0] + "/cgroup.procs", "w") as file:
            file.write("0")


def change_tag() -> None:
    """Replace the tag: set another soft RLIMIT_MSGQUEUE."""
    resource.setrlimit(
        resource.RLIMIT_MSGQUEUE, (4711, resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1])
    )


def again(*words: str, **environment: str) -> None:
    """Execute this program with only those variables of the environment that it needs."""
    kept = {
        name: os.environ[name]
        for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH")
        if name in os.environ
    }
    os.execve(sys.executable, [sys.executable, __file__, *words], kept | environment)


def strip(*words: str) -> None:
    """Execute the attack `words` in an orphan without cgroup, tag and cookie."""
    path = os.environ["SFA_SOCKET"]

    def go() -> None:
        leave_cgroup()
        change_tag()
        again(*words, SFAD_SOCKET=path)

    orphan(go)
    nap()


def ask(victim: str) -> None:
    """Try what a person may do and an agent may not."""
    for words in (
        ["info", victim],
        ["stop", victim],
        ["list"],
        ["spawn", "--", "sleep", "100"],
        ["status"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "sfactl", *words], capture_output=True, text=True
        )
        print(
            "asked", words[0], done.returncode, done.stderr.strip().replace("\n", " "), flush=True
        )
    ready(os.getpid())
    nap()


def cookie_orphan() -> None:
    """Leave an orphan outside its cgroup that still has its marks and ignores SIGTERM."""

    def go() -> None:
        leave_cgroup()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready(os.getpid())
        nap()

    orphan(go)
    nap()


def unmarked_orphan() -> None:
    """Leave an orphan outside its cgroup and without marks."""
    strip("here")


def shed_marks(when: str) -> None:
    """Leave an orphan outside its cgroup that sheds its marks when there is a file `when`."""

    def go() -> None:
        leave_cgroup()
        ready(os.getpid())
        wait_for(lambda: os.path.exists(when))
        change_tag()
        again("here")

    orphan(go)
    nap()


def leave_when_told() -> None:
    """Leave an orphan that gets out of its cgroup and sheds its marks when it gets SIGTERM."""

    def go() -> None:
        signal.signal(signal.SIGTERM, lambda *_: leave())
        ready(os.getpid())
        nap()

    def leave() -> None:
        leave_cgroup()
        change_tag()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        again("here")

    orphan(go)
    nap()


def chain(generations: str) -> None:
    """Leave an orphan outside its cgroup, with its marks, that forks and exits without pause so
    many times."""

    def go() -> None:
        leave_cgroup()
        ready(os.getpid())
        for _ in range(int(generations)):
            if os.fork():
                os._exit(0)
        nap()

    orphan(go)


def here() -> None:
    """Print the pid."""
    ready(os.getpid())
    nap()


def main_leaves(*ignore: str) -> None:
    """Leave the cgroup as the main process."""
    if ignore:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_cgroup()
    ready(os.getpid())
    nap()


def main_leaves_and_removes() -> None:
    """Leave the cgroup as the main process, and remove it."""
    inside = own_cgroup()
    leave_cgroup()
    with suppress(OSError):
        os.rmdir(inside)
    ready(os.getpid())
    nap()


def nest(depth: str, name: str) -> None:
    """Make cgroups in cgroups, after raising the bounds where that is permitted."""
    top = own_cgroup()
    if "/sfad-" in top:
        directory = top
        while not directory.endswith("/cgroup") and "/sfad-" in directory:
            for file in ("cgroup.max.depth", "cgroup.max.descendants"):
                with suppress(OSError), open(f"{directory}/{file}", "w") as control:
                    control.write("max")
            directory = os.path.dirname(directory)
        os.chdir(top)
        for _ in range(int(depth)):
            os.mkdir(name)
            os.chdir(name)
    ready()
    nap()


def lock_up() -> None:
    """Take the owner's access rights from the run's cgroups and their control files. Leave a child
    that ignores SIGTERM."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready(os.getpid())
        nap()
    inside = own_cgroup()
    if "/sfad-" in inside:
        for file in ("cgroup.kill", "cgroup.events", "cgroup.procs", "cgroup.freeze"):
            os.chmod(f"{inside}/{file}", 0)
        os.chmod(inside, 0)
        os.chmod(os.path.dirname(inside), 0)
    nap()


def join(cgroup: str, victim: str) -> None:
    """Move into the cgroup of another run, and send requests with its rights."""
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write("0")
    ask(victim)


def take_daemon(pid: str) -> None:
    """Move the daemon into the cgroup of this process."""
    with open(f"{own_cgroup()}/cgroup.procs", "w") as file:
        file.write(pid)
    ready()
    nap()


def spoil(following: str) -> None:
    """Make the cgroup of the next run, frozen, and forbid the daemon's cgroup any other below
    it."""
    base = os.path.dirname(own_cgroup())
    os.mkdir(f"{base}/{following}")
    for name, content in (("cgroup.freeze", "1"),):
        with open(f"{base}/{following}/{name}", "w") as file:
            file.write(content)
    with open(f"{base}/cgroup.max.descendants", "w") as file:
        file.write("0")
    ready()
    nap()


def thaw(cgroup: str, pid: str) -> None:
    """Thaw another run, again and again as soon as it stands still."""
    for _ in range(3):
        if cgroup:
            with open(f"{cgroup}/cgroup.freeze", "w") as file:
                file.write("0")
            wait_for(lambda: _says(f"{cgroup}/cgroup.freeze", "1"))
            wait_for(lambda: _says(f"{cgroup}/cgroup.events", "frozen 1"))
        else:
            os.kill(int(pid), signal.SIGCONT)
            wait_for(lambda: _says(f"/proc/{pid}/status", "State:\tT"))
    ready()
    nap()


def _says(path: str, text: str) -> bool:
    with open(path) as file:
        return text in file.read()


def traced_main() -> None:
    """End the main process with exit code 7 while a child traces it and never waits."""
    main = os.getpid()
    if os.fork() == 0:
        assert _libc.ptrace(_PTRACE_SEIZE, main, 0, 0) == 0, os.strerror(ctypes.get_errno())
        nap()
    wait_for(lambda: _traced(main))
    os._exit(7)


def _traced(pid: int) -> bool:
    return "TracerPid:\t0\n" not in open(f"/proc/{pid}/status").read()


def headless() -> None:
    """End the main thread while another one runs."""

    def go_on() -> None:
        ready(os.getpid())
        time.sleep(LIFE)

    threading.Thread(target=go_on).start()
    _libc.pthread_exit(None)


def trace(pid: str) -> None:
    """Trace a process of another run and never wait for it."""
    assert _libc.ptrace(_PTRACE_SEIZE, int(pid), 0, 0) == 0, os.strerror(ctypes.get_errno())
    ready()
    nap()


def use_connection(path: str, victim: str) -> None:
    """Send a request over a connection that a process outside each run has made and passed on."""
    from sfad.protocol import messages as m

    with socket.socket(socket.AF_UNIX) as giver:
        giver.connect(path)
        fd = socket.recv_fds(giver, 1, 1)[1][0]
    with socket.socket(fileno=fd) as connection:
        connection.sendall(m.pack_message(m.Stop(id=77, runs=[victim])))
        reply = m.unpack_reply(connection.recv(65536)[4:])
    ready(getattr(reply, "code", reply), getattr(reply, "message", ""))
    nap()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
