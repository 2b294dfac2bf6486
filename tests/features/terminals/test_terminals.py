"""Runs with a terminal of their own, and people who look at them."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sfad.protocol.types import Terminal
from tests.conftest import Start
from tests.features.terminals.person import Person
from tests.harness import PYTHON, Daemon, alive, started, wait_until
from tests.tiers import variant

TALK = 'stty -echo; echo "ready $(stty size) $(tty)"; while read -r x; do echo "got [$x]"; done'
STUBBORN = "trap '' TERM HUP INT; echo stubborn; while :; do sleep 1; done"


def holders(daemon: Daemon) -> list[int]:
    """Return the processes that have orders of this daemon open."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError):
            orders = os.readlink(f"/proc/{pid}/fd/2")
            if orders.startswith(f"{daemon.state_dir.resolve()}/terminals/"):
                found.append(pid)
    return found


def spawned(daemon: Daemon, *words: str) -> str:
    done = daemon.sfactl("spawn", "--terminal", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shown(daemon: Daemon, run: str, words: str) -> str:
    """Return the text of a run once it has these words."""

    def text() -> str:
        return daemon.sfactl("logs", run).stdout

    return str(wait_until(lambda: text() if words in text() else "", f"{run} shows {words}"))


def test_a_run_outlives_its_client(start: Start) -> None:
    daemon = start()
    with Person(daemon, "run", "--terminal", "--", "sh", "-c", TALK, rows=30, columns=90) as first:
        first.sees("ready 30 90 /dev/pts/")
        first.type("one\r")
        first.sees("got [one]")
        first.type("\x1d")
        first.sees("[detached from a1; sfactl attach a1 comes back]")
        assert first.leaves() == 0
    with Person(daemon, "attach", "a1", rows=30, columns=90) as second:
        assert second.sees("got [one]").startswith("ready 30 90")
        assert second.hang_up() == 0
    with Person(daemon, "attach", "a1") as third:
        third.type("x\x1d\x1dy\r")
        third.sees("got [x\x1dy]".replace("\x1d", ""))
        third.type("\x04")
        assert third.leaves() == 0
    assert holders(daemon) == []
    assert "x\x1dy" in daemon.output("a1")


def test_a_holder_survives_the_daemon(start: Start) -> None:
    daemon = start()
    run = spawned(daemon, "--", "sh", "-c", f"trap 'exit 7' USR1; {TALK}; exit 9")
    shown(daemon, run, "ready")
    said = ["ready"]
    with Person(daemon, "attach", run) as person:
        person.sees("ready")
        for number in range(3):
            daemon.kill()
            daemon.restart()
            wait_until(lambda: run in daemon.sfactl("list").stdout, "it serves")
            assert daemon.sfactl("send", run, "--keys", f"{number}<Enter>").returncode == 0
            person.sees(f"got [{number}]")
            said.append(f"got [{number}]")
        daemon.reexecute()
        assert daemon.sfactl("send", run, "--keys", "last<Enter>").returncode == 0
        person.sees("got [last]")
        daemon.sfactl("send", run, "--keys", "<C-d>")
        assert person.leaves() == 9
    lines = daemon.sfactl("logs", run).stdout.splitlines()
    assert [line.split(" 24 80")[0] for line in lines] == [*said, "got [last]"]
    assert holders(daemon) == []


def test_every_byte_is_kept_once(start: Start) -> None:
    """What is written in the instant before a kill is kept, and nothing twice."""
    daemon = start()
    count = 20000
    program = f"import sys, os, signal\nfor n in range({count}): print(n)\nsys.stdout.flush()\n"
    killed = f"{program}os.kill(os.getpid(), signal.SIGKILL)"
    run = spawned(daemon, "--", "python3", "-c", killed)
    daemon.kill()
    daemon.restart()
    assert daemon.sfactl("wait", run).returncode in (137, 70)
    kept = (daemon.state_dir / "output" / f"{run}.out").read_bytes()
    assert kept == b"".join(b"%d\r\n" % n for n in range(count))
    assert daemon.sfactl("logs", run).stdout == "".join(f"{n}\n" for n in range(count))
    assert daemon.sfactl("logs", "--tail", "2", run).stdout == f"{count - 2}\n{count - 1}\n"


@pytest.mark.parametrize("code", [0, 3])
def test_its_own_exit_code(start: Start, code: int) -> None:
    daemon = start()
    words = ["run", "--terminal", "--", "sh", "-c", f"echo bye; exit {code}"]
    with Person(daemon, *words) as person:
        assert person.leaves() == code
        assert "bye" in person.text
    assert daemon.sfactl("wait", "a1").returncode == code


def test_a_stop_leaves_nothing(start: Start) -> None:
    daemon = start()
    run = spawned(daemon, "--grace", "0.2s", "--", "sh", "-c", f"({STUBBORN}) & {STUBBORN}")
    shown(daemon, run, "stubborn")
    (holder,) = holders(daemon)
    assert os.readlink(f"/proc/{holder}/fd/0").endswith("ptmx")
    pid = json.loads(daemon.sfactl("info", run, "--json").stdout)["pid"]
    processes = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    terminal = os.readlink(f"/proc/{pid}/fd/0")
    made = os.stat(terminal).st_ctime_ns
    assert daemon.sfactl("stop", run).returncode == 0
    assert not any(map(alive, [holder, *processes]))
    with suppress(FileNotFoundError):  # another one may have its number
        assert os.stat(terminal).st_ctime_ns != made
    assert not (daemon.state_dir / "terminals" / run).exists()
    assert "stubborn" in daemon.sfactl("logs", run).stdout


def test_one_that_has_the_terminal_elsewhere(start: Start) -> None:
    """A process outside of the run that has opened its terminal keeps no holder alive."""
    daemon = start()
    run = spawned(daemon, "--", "sh", "-c", TALK)
    place = shown(daemon, run, "ready").split()[3]
    other = os.open(place, os.O_RDWR | os.O_NOCTTY)
    try:
        assert daemon.sfactl("stop", run).returncode == 0
        assert holders(daemon) == []
    finally:
        os.close(other)


def test_two_viewers(start: Start) -> None:
    daemon = start()
    run = spawned(daemon, "--", "sh", "-c", TALK)
    shown(daemon, run, "ready")
    with (
        Person(daemon, "attach", run, rows=20, columns=60) as one,
        Person(daemon, "attach", "--read-only", run, rows=20, columns=60) as other,
    ):
        one.sees("ready")
        one.type("hello\r")
        assert one.sees("got [hello]") == other.sees("got [hello]")
        other.type("unseen\r")
        one.type("size\r")
        one.sees("got [size]")
        assert "unseen" not in daemon.output(run)
        one.resize(10, 40)
        os.kill(one.process.pid, signal.SIGWINCH)
        one.type("again\r")
        other.sees("got [again]")
        other.type("\x1d")
        assert other.leaves() == 0
    wait_until(lambda: "10 40" in _sizes(daemon, run), "its size is that of who typed")
    assert daemon.sfactl("stop", run).returncode == 0


def _sizes(daemon: Daemon, run: str) -> list[str]:
    lines = daemon.sfactl("logs", "--asciicast", run).stdout.splitlines()
    first = json.loads(lines[0])
    events = [json.loads(line) for line in lines[1:]]
    assert first["version"] == 2
    return [f"{first['height']} {first['width']}"] + [
        " ".join(reversed(text.split("x"))) for _, kind, text in events if kind == "r"
    ]


def test_what_is_kept(start: Start) -> None:
    daemon = start()
    dance = (
        r"for i in 1 2 3; do printf '\r\033[Kstep %s' $i; done; echo; "
        r"printf '\033[31mred\033[0m\n\033[?1049h\033[2J\033[Hmenu\033[?1049l'; "
        r"i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; done; "
        r"printf 'token=sk-ant-abcdefghijklmnopqrstuvwxyz\n'"
    )
    run = spawned(daemon, "--", "sh", "-c", dance)
    assert daemon.sfactl("wait", run).returncode == 0
    lines = ["step 3", "red", "menu", *(f"line {n}" for n in range(1, 41))]
    assert daemon.sfactl("logs", run).stdout.splitlines()[:-1] == lines
    assert daemon.sfactl("logs", "-f", run).stdout.splitlines()[:-1] == lines
    assert "\x1b[31mred" in daemon.sfactl("logs", "--raw", run).stdout
    assert daemon.sfactl("logs", "--screen", run).stdout.splitlines()[-2] == "line 40"
    assert "red" not in daemon.sfactl("logs", "--screen", run).stdout
    first, *events = map(json.loads, daemon.sfactl("logs", "--asciicast", run).stdout.splitlines())
    assert (first["version"], first["width"], first["height"]) == (2, 80, 24)
    text = "".join(text for _, kind, text in events if kind == "o")
    assert "\x1b[31mred" in text
    assert "abcdefghij" not in text
    daemon.stop()
    assert daemon.sfactl("logs", run).stdout.splitlines()[:-1] == lines


def test_a_recording_hides_keys_that_come_in_pieces(start: Start) -> None:
    daemon = start()
    key = "sk-ant-abcdefghijklmnopqrstuvwxyz"
    program = (
        f"import sys, time\nfor c in '{key}':\n sys.stdout.write(c + '\\x1b[m'); "
        "sys.stdout.flush(); time.sleep(0.02)\nprint(' after')"
    )
    run = spawned(daemon, "--", "python3", "-c", program)
    assert daemon.sfactl("wait", run).returncode == 0
    _, *events = map(json.loads, daemon.sfactl("logs", "--asciicast", run).stdout.splitlines())
    texts = [text for _, kind, text in events if kind == "o"]
    assert len(texts) > 5, "it came in pieces"
    assert "".join(texts).replace("\x1b[m", "") == "*" * len(key) + " after\r\n"


def test_typing(start: Start) -> None:
    daemon = start()
    run = spawned(daemon, "--", "sh", "-c", TALK)
    shown(daemon, run, "ready")
    for words, expected in (
        (["y<Enter>"], "got [y]"),
        (["two words<Space>", "<lt>x><Enter>"], "got [two words  <x>]"),
        (["wrong<C-u>right<Enter>"], "got [right]"),
    ):
        assert daemon.sfactl("send", run, "--keys", *words).returncode == 0
        shown(daemon, run, expected)
    refused = daemon.sfactl("send", run, "--keys", "<Entre>")
    assert refused.returncode == 2
    assert "unknown key <Entre>" in refused.stderr
    plain = daemon.sfactl("spawn", "--", "sleep", "60").stdout.strip()
    assert "has no terminal of its own" in daemon.sfactl("send", plain, "--keys", "x").stderr
    assert "needs a terminal" in daemon.sfactl("attach", plain).stderr
    with Person(daemon, "attach", plain) as person:
        assert person.leaves() != 0
        assert "has no terminal of its own" in person.text
    daemon.sfactl("stop", "--all")


def test_who_may_type(start: Start) -> None:
    """A run types into runs below it alone, and not at all without the permission."""
    daemon = start()
    other = spawned(daemon, "--", "sh", "-c", TALK)
    sfactl = f"{PYTHON} -m sfactl"
    script = (
        f"c=$({sfactl} spawn --terminal --name child -- sh -c 'read x; echo got $x'); "
        f"{sfactl} send $c --keys 'y<Enter>' && echo child; "
        f"{sfactl} send {other} --keys x || echo no; "
        f"{sfactl} wait --timeout 5s $c; {sfactl} logs $c"
    )
    done = daemon.sfactl("run", "--", "sh", "-c", script)
    assert "child\n" in done.stdout
    assert "no\n" in done.stdout
    assert "got y" in done.stdout
    done = daemon.sfactl("run", "--deny", "keys", "--", "sh", "-c", script)
    assert "child\n" not in done.stdout
    daemon.sfactl("stop", "--all")


def test_it_does_not_reach_the_holder_by_a_name(start: Start) -> None:
    """The holder has no socket, no environment, and none of the daemon's descriptors."""
    daemon = start()
    run = spawned(daemon, "--", "sh", "-c", TALK)
    shown(daemon, run, "ready")
    (holder,) = holders(daemon)
    assert Path(f"/proc/{holder}/environ").read_bytes() == b""
    targets = {
        name: os.readlink(f"/proc/{holder}/fd/{name}") for name in os.listdir(f"/proc/{holder}/fd")
    }
    assert sorted(targets) == ["0", "1", "2", "3"]
    assert not any(target.startswith("socket:") for target in targets.values())
    assert psutil.Process(holder).memory_full_info().uss < 3 << 20
    daemon.sfactl("stop", run)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--no-log"], "--terminal and --no-log exclude each other"),
        (["--stdio", "inherit", "--wait"], "--terminal and --stdio inherit exclude each other"),
        (["--stdin"], "--terminal and --stdin exclude each other"),
    ],
)
def test_what_excludes_it(start: Start, options: list[str], said: str) -> None:
    refused = start().sfactl("spawn", "--terminal", *options, "--", "true")
    assert refused.returncode == 2
    assert said in refused.stderr


@variant
def test_further_attempts_have_further_terminals(start: Start) -> None:
    daemon = start()
    run = spawned(
        daemon, "--attempts", "3", "--retry-delay", "0.1s", "--",
        "sh", "-c", 'echo "attempt $SFA_ATTEMPT on $(tty)"; exit 1',
    )  # fmt: skip
    assert daemon.sfactl("wait", run).returncode == 1
    text = daemon.sfactl("logs", run).stdout
    assert [line.split(" on ")[0] for line in text.splitlines()] == [
        f"attempt {n}" for n in (1, 2, 3)
    ]
    assert holders(daemon) == []


def test_agents_in_terminals(start: Start, tmp_path: Path) -> None:
    """An agent of the config may want one, and a known program is started as a person would."""
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "told: $*"\n')
    program.chmod(0o755)
    daemon = start(config='[agents.talk]\ncommand = ["tty"]\nterminal = true\n')
    talk = daemon.sfactl("spawn", "talk").stdout.strip()
    path = f"PATH={program.parent}:{os.environ['PATH']}"
    claude = spawned(daemon, "--env", path, "claude", "--model", "opus", "fix it")
    daemon.sfactl("wait", talk, claude)
    assert daemon.sfactl("logs", talk).stdout.startswith("/dev/pts/")
    assert daemon.sfactl("logs", claude).stdout == "told: --model opus fix it\n"


def test_one_that_cannot_be_started(start: Start) -> None:
    daemon = start()
    failed = daemon.sfactl("spawn", "--terminal", "--", "no-such-program")
    assert failed.returncode == 127
    wait_until(lambda: holders(daemon) == [], "no holder is left")
    with Person(daemon, "run", "--terminal", "--", "no-such-program") as person:
        assert person.leaves() == 127
        assert "no-such-program" in person.text
    wait_until(lambda: holders(daemon) == [], "no holder is left")


@variant
def test_twenty_kills_in_the_middle_of_a_screen(start: Start, tmp_path: Path) -> None:
    """Of a program that counts without pause, no byte is lost, and none is there twice."""
    daemon = start()
    enough = tmp_path / "enough"
    program = (
        "import os, itertools\n"
        "for n in itertools.count():\n"
        "    print('line', n, flush=True)\n"
        f"    if n % 1000 == 0 and os.path.exists({str(enough)!r}): break\n"
    )
    run = spawned(
        daemon, "--timeout", "10m", "--limit", "output=1GiB", "--", "python3", "-c", program
    )
    output = daemon.state_dir / "output" / f"{run}.out"
    for _ in range(20):
        daemon.kill()
        before = output.stat().st_size
        wait_until(lambda: output.stat().st_size > before, "it goes on")  # noqa: B023
        daemon.restart()
    enough.touch()
    assert daemon.sfactl("wait", run).returncode in (0, 70)
    with output.open("rb") as file:
        number = -1
        for number, line in enumerate(file):
            assert line == b"line %d\r\n" % number
    assert number > 1000


@variant
def test_what_a_paused_run_has_written_is_kept(start: Start) -> None:
    daemon = start()
    run = spawned(daemon, "--grace", "0.2s", "--", "sh", "-c", STUBBORN)
    shown(daemon, run, "stubborn")
    assert daemon.sfactl("pause", run).returncode == 0
    assert daemon.sfactl("send", run, "--keys", "typed").returncode == 0
    shown(daemon, run, "typed")
    assert daemon.sfactl("stop", run).returncode == 0
    assert holders(daemon) == []


@variant
def test_a_hundred_idle_terminals_do_not_wake_the_daemon(start: Start) -> None:
    """It wakes as often as a daemon without any. Both look at each program that starts on the
    machine, as root's does."""
    other = start()
    daemon = start(config="[quotas]\ntrees_per_user = 200\ntrees = 200\nspawns_per_hour = 1000\n")
    with daemon.client() as client, other.client() as beside:
        started(beside, ["sleep", "600"])
        for _ in range(100):
            started(client, ["sleep", "600"], terminal=Terminal())
    wait_until(lambda: len(holders(daemon)) == 100, "each has its holder")
    wait_until(lambda: _more_wake_ups(daemon, other, 1.0) <= 2, "they wake equally often")
    assert daemon.sfactl("stop", "--all").returncode == 0
    assert holders(daemon) == []


def _more_wake_ups(daemon: Daemon, other: Daemon, seconds: float) -> int:
    """Return how much more often threads of a daemon than of the other one have begun to wait
    within some seconds."""
    before, others = _waits(daemon), _waits(other)
    time.sleep(seconds)
    return (_waits(daemon) - before) - (_waits(other) - others)


def _waits(daemon: Daemon) -> int:
    return sum(
        int(line.split()[1])
        for task in Path(f"/proc/{daemon.process.pid}/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )
