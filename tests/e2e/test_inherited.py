"""What a parent leaves to the daemon and to the client: ignored and blocked signals, closed
descriptors, a umask, a locale."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import PATIENCE, alive, argv, ended, started, wait_until
from tests.tiers import first, sampled, variant

from .provider import Provider
from .test_gateway import calling, config, results

CHILDREN, DESCRIPTORS, LOCALE = (
    "SIGCHLD ignored",
    "no standard descriptors",
    "a locale without UTF-8",
)
STATES = {
    "as usual": "",
    CHILDREN: "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "signals ignored": (
        "for number in signal.valid_signals() - {9, 19, 32, "
        "33}: signal.signal(number, signal.SIG_IGN)"
    ),
    "signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    DESCRIPTORS: "os.closerange(0, 3)",
    "umask 077": "os.umask(0o077)",
    "umask 000": "os.umask(0)",
    "few descriptors": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, "
        "resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
    ),
    LOCALE: "os.environ.update(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')",
}
"""Each with the code that brings a process into it."""
MOST = {CHILDREN, DESCRIPTORS, LOCALE, "signals blocked"}
"""States that once broke something."""


def states(*which: str) -> list[Any]:
    """Return parameters. Only the states that once broke something belong to the fast tier."""
    more = variant
    marks = {state: [more] for state in which if state not in MOST}
    return [pytest.param(state, marks=marks.get(state, _possible(state))) for state in which]


NO_START = "Python itself does not start: the path of this checkout has letters that ASCII has not"
"""It reads the path of an editable install in the encoding of the locale."""


def _possible(state: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skip(NO_START)] if state == LOCALE and not __file__.isascii() else []


def inheriting(state: str) -> list[str]:
    """Return words that a command follows, which then starts in this state."""
    code = f"import os, resource, signal, sys\n{STATES[state]}\nos.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-I", "-S", "-c", code]


def sfactl(env: Mapping[str, str], state: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in this state."""
    command = [*inheriting(state), sys.executable, "-m", "sfactl", *words]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE, env=env, check=False)


SHOWS = """
pwd
grep -E '^Sig(Blk|Ign)' /proc/self/status
umask
readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 | wc -l
exit 3
"""


@first(1)
@pytest.mark.parametrize("state", states(*list(STATES)[1:]))
def test_runs_are_started_read_and_stopped(start: Start, state: str, tmp_path: Path) -> None:
    """They themselves begin with all signals at their defaults, and with three descriptors."""
    daemon, place = start(wrap=inheriting(state)), tmp_path / "Grüße aus Köln"
    place.mkdir()
    words = ["run", "-q", "--name", "grüße", "--cwd", str(place), "--", "sh", "-c", SHOWS]
    done = sfactl(daemon.env, state, *words)
    assert done.returncode == 3, done
    nothing = "0" * 16
    mask = {"umask 077": "0077", "umask 000": "0000"}.get(state, _umask())
    shown = f"{place}\nSigBlk:\t{nothing}\nSigIgn:\t{nothing}\n{mask}\n3\n"
    assert daemon.output("a1") == shown
    assert (
        sfactl(daemon.env, state, "spawn", "--", "sh", "-c", "sleep 1000 & sleep 1000").returncode
        == 0
    )
    tree = sfactl(daemon.env, state, "tree")
    if state != DESCRIPTORS:  # without stdout they print nothing, and the daemon has no log
        assert done.stdout.decode() == shown
        assert "grüße" in tree.stdout.decode()
        daemon.reexecute()
    assert sfactl(daemon.env, state, "stop", "a2").returncode == 0


NO_UTF8 = {
    "C": {"LC_ALL": "C"},
    "C, and Python may not change it": {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    },
    "POSIX": {"LANG": "POSIX"},
    "not installed": {"LC_ALL": "xx_YY.ISO-8859-1"},
    "streams in ASCII": {"PYTHONIOENCODING": "ascii"},
    "streams in Latin 1": {"PYTHONIOENCODING": "latin-1:strict", "LC_ALL": "C"},
}
"""What an environment says of the encoding."""
SHOWN = ("list", "info grüße", "tree", "why grüße", "events", "summary", "help", "doctor",
         "run --help", "recommend", "config", "logs grüße", "rerun --dry-run grüße")  # fmt: skip


@pytest.mark.parametrize("encoding", sampled([*NO_UTF8][::-1]))
def test_what_is_printed_is_utf8(share: Start, encoding: str) -> None:
    daemon = share()
    env = {name: value for name, value in daemon.env.items() if not name.startswith("LC_")}
    env = {**env, **NO_UTF8[encoding]}
    if not __file__.isascii() and "LC_ALL" in env:
        pytest.skip(NO_START)
    words = ["run", "-q", "--name", "grüße", "--label", "k=☃", "--", "echo", "größe"]
    assert _printed(env, *words) == "größe\n"
    for line in SHOWN:
        shown = _printed(env, *line.split())
        if line.split()[0] in ("list", "info", "tree", "events"):
            assert "grüße" in shown
    # it may find something to complain of
    assert sfactl(env, "as usual", "doctor").returncode in (0, 1)


def _printed(env: Mapping[str, str], *words: str) -> str:
    done = sfactl(env, "as usual", *words)
    assert (done.returncode, done.stderr) == (0, b""), words
    return done.stdout.decode()


def _umask() -> str:
    status = Path("/proc/self/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:"))


@pytest.mark.parametrize("state", sampled([CHILDREN, DESCRIPTORS, LOCALE]))
def test_a_model_call_passes_the_gateway(start: Start, provider: Provider, state: str) -> None:
    if _possible(state):
        pytest.skip(NO_START)
    daemon = start(config=config(provider), wrap=inheriting(state))
    with daemon.client() as client:
        run = ended(client, calling(client, gateway=True).id)
    assert run.exit_code == 0, daemon.errors(run.id)
    assert [result["status"] for result in results(daemon, run.id)] == [200]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment that names a daemon which is not there. If a client starts it, it is ended."""
    ours = {
        key: value for key, value in os.environ.items() if not key.startswith(("SFA_", "SFAD_"))
    }
    env = ours | {
        "SFAD_STATE_DIR": str(tmp_path / "Zustände"),
        "SFAD_SOCKET": str(tmp_path / "söckel"),
    }
    yield env | {"XDG_RUNTIME_DIR": str(tmp_path)}  # no systemd of the user's
    words = [sys.executable, "-m", "sfactl", "status", "--json"]
    pid = json.loads(subprocess.run(words, capture_output=True, env=env, check=True).stdout)["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not alive(pid), "the daemon has ended")


@first(1)
@pytest.mark.parametrize(
    "state", states(CHILDREN, "signals ignored", DESCRIPTORS, "umask 000", LOCALE)
)
def test_a_client_starts_a_daemon(elsewhere: Mapping[str, str], state: str) -> None:
    assert sfactl(elsewhere, state, "run", "-q", "--", "sh", "-c", "exit 5").returncode == 5


STRAY = sorted(
    signal.valid_signals()
    - {1, 2, 3, 9, 12, 15, 17, 19, 32, 33}
    - {signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}
    - {signal.SIGXCPU, signal.SIGSYS}
)
"""All but those that mean something to a daemon, and those of faults and limits."""


def test_stray_signals_end_neither_daemon_nor_gateway(start: Start, provider: Provider) -> None:
    daemon = start(config=config(provider))
    with daemon.client() as client:
        run = ended(client, calling(client, gateway=True).id)
        helpers = [child.pid for child in psutil.Process(daemon.pid).children(recursive=True)]
        assert any("sfad.gateway" in argv(pid) for pid in helpers)
        for _ in range(2):
            for number in STRAY:
                for pid in (daemon.pid, *helpers):
                    os.kill(pid, number)
        daemon.reexecute()
        os.kill(daemon.pid, signal.SIGUSR2)
        for number in STRAY:
            os.kill(daemon.pid, number)
    with daemon.client() as client:
        run = ended(client, calling(client, gateway=True).id)
        assert run.exit_code == 0, daemon.errors(run.id)
        shown = ended(client, started(client, ["sh", "-c", SHOWS]).id)
        assert f"SigIgn:\t{'0' * 16}" in daemon.output(shown.id)
        assert all(alive(pid) for pid in helpers)


def test_a_client_is_interrupted_though_its_parent_blocks_signals(share: Start) -> None:
    daemon = share()
    run_words = ["run", "-q", "--grace", "0", "--cwd", "/", "--", "sleep", "1000"]
    words = [*inheriting("signals blocked"), sys.executable, "-m", "sfactl", *run_words]
    with (
        subprocess.Popen(words, env=daemon.env, stderr=subprocess.PIPE) as client,
        daemon.client() as asking,
    ):
        run = wait_until(
            lambda: (
                asking.call(m.List(id=asking.next_id(), status=[Status.RUNNING]), m.RunList).runs
            ),
            "the run is there",
        )[0]
        client.send_signal(signal.SIGINT)
        assert ended(asking, run.id).status == Status.CANCELLED
        assert client.wait(PATIENCE) == 130
