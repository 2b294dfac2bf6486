"""Shims: a program that is called inside a run is a child run, and its caller sees no
difference."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sfad.features.shims import files
from sfad.protocol.known import KNOWN_PROGRAMS
from sfad.protocol.stand_ins import is_stand_in
from tests.harness import wait_until
from tests.tiers import variant

from .conftest import PATIENCE, SFACTL, World
from .test_terminal import Screen

PROGRAM = """#!{python} -S
import os, signal, sys, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
what, *words = sys.argv[1:]
if what == "exit":
    os._exit(int(words[0]))
if what == "signal":
    os.kill(os.getpid(), int(words[0]))
if what == "copy":
    while data := os.read(0, 65536):
        while data:
            data = data[os.write(1, data):]
    os.write(2, b"\\xff\\0end")
if what == "tell":
    with open("/proc/self/environ", errors="backslashreplace") as file:
        own = "SFA_", "PATH=", "ANTHROPIC_BASE_URL=", "OPENAI_BASE_URL=", "GOOGLE_GEMINI_BASE_URL="
        kept = [item for item in file.read().split("\\0") if not item.startswith(own)]
    print(sorted(kept), os.getcwd(), oct(os.umask(0)), ascii(sys.argv[1:]), sys.stdin.isatty())
if what == "flood":
    while True:
        os.write(1, b"x" * 65536)
if what == "call":
    sys.exit(os.spawnvp(os.P_WAIT, words[0], words) & 255)
if what == "shell":
    os.execv("/bin/bash", ["bash", "--norc", "--noprofile", "-i"])
if what == "wait":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(76))
    signal.signal(signal.SIGCONT, lambda *_: print("goes on", flush=True))
    print(os.getpid(), flush=True)
    time.sleep(100)
if what in ("name", "--version"):
    print(*(os.environ.get("SFA_" + each) for each in ("NAME", "CALL_CHAIN", "CHILD_NAME")))
"""

CALLER = """
import os, subprocess, sys
big = bytes(range(256)) * 40_000
def same(*words, **options):
    def called(file):
        options.update(capture_output=True, cwd="/tmp", umask=0o031)
        done = subprocess.run([file, *words], **options)
        return done.returncode, done.stdout, done.stderr
    direct, shimmed = called(sys.argv[1]), called("claude")
    assert direct == shimmed, (
        words, [part if isinstance(part, int) else part[-500:] for part in direct + shimmed])
    return direct
for code in (0, 3, 143, 255):
    assert same("exit", str(code)) == (code, b"", b"")
for number in (2, 9, 15):
    assert same("signal", str(number))[0] == -number
code, out, err = same("copy", input=big)
assert (code, out == big, err) == (0, True, b"\\xff\\0end"), (code, len(out), err)
odd = os.environ | {"A": "\\udcff=1", "LC_ALL": "C"}
assert same("tell", b"\\xff\\xfe", "", "a b\\n", "--version", env=odd)[0] == 0
for program in (sys.argv[1], "claude"):
    reader = subprocess.Popen([program, "flood"], stdout=subprocess.PIPE)
    reader.stdout.read(1)
    reader.stdout.close()
    assert reader.wait() == -13, (program, reader.returncode)
print("the same")
"""


INTERPRETER = sys.executable


def installed(world: World) -> World:
    """Give a world a program `claude`, and its shim."""
    binaries = world.directory / "bin"
    binaries.mkdir()
    (binaries / "claude").write_text(PROGRAM.format(python=sys.executable))
    (binaries / "claude").chmod(0o755)
    world.env["PATH"] = f"{binaries}:/usr/local/bin:/usr/bin:/bin"
    world.sfactl("shim", "install", "claude")
    return world


@pytest.fixture(scope="module")
def _place(shared: World) -> World:
    return installed(shared)


@pytest.fixture
def place(_place: World, daemon: World) -> World:
    """A daemon whose runs have a shim of `claude`."""
    return daemon


def shim(world: World) -> Path:
    return world.state / "shims" / "claude"


def program(world: World) -> str:
    return str(world.directory / "bin" / "claude")


def test_a_caller_sees_no_difference(place: World) -> None:
    """Exit codes, signals, 10 MB of any bytes, end of file, a reader that goes, arguments,
    environment, directory and umask."""
    done = place.sfactl(
        "run", "-q", "--type", "x", "--", sys.executable, "-c", CALLER, program(place)
    )
    assert (done.stdout, done.stderr) == ("the same\n", "")
    children = place.json("list", "--name", "claude")["runs"]
    assert len(children) == 10
    assert {run["parent_id"] for run in children} != {None}


def test_the_guard_decides(place: World) -> None:
    """A program that calls itself is a loop at the second level; with names of its own it stops at
    a depth of five."""
    done = place.sfactl("run", "-q", "--", "claude", "call", "claude", "exit", "5", code=1)
    assert "claude → claude" in done.stderr
    assert "SFA_CHILD_NAME=NAME claude" in done.stderr
    deeper = place.directory / "deeper"
    deeper.write_text('#!/bin/sh\nSFA_CHILD_NAME=level$1 claude call "$0" $(($1 + 1))\n')
    deeper.chmod(0o755)
    done = place.sfactl("run", "-q", "--label", "test=deeper", "--", str(deeper), "1", code=1)
    assert "is already 5 deep" in done.stderr
    admitted = [
        run
        for run in place.json("list", "--label", "test=deeper")["runs"]
        if run["status"] == "failed"
    ]
    assert {run["name"]: run["depth"] for run in admitted} == {
        "deeper": 0,
        "level1": 1,
        "level2": 2,
        "level3": 3,
        "level4": 4,
    }
    assert (
        "--leaf"
        in place.sfactl("run", "-q", "--leaf", "--", "sh", "-c", "claude name", code=77).stderr
    )


def test_a_name_is_for_one_child(place: World) -> None:
    calls = (
        "SFA_CHILD_NAME=a claude name; SFA_CHILD_NAME=b claude call claude name; "
        "claude name; claude --version"
    )
    done = place.sfactl("run", "-q", "--name", "top", "--", "sh", "-c", calls)
    assert done.stdout == "a top None\nclaude top,b None\nclaude top None\ntop  None\n", (
        "a question is no run"
    )
    done = place.sfactl("run", "-q", "--", "sh", "-c", "SFA_CHILD_NAME='a b' claude name", code=2)
    assert "'a b' is not valid" in done.stderr


def test_signals_and_ends(place: World) -> None:
    """A signal to the shim reaches the program or stops the run, and nothing is left. A limit is
    named on stderr."""
    caller = """
import os, select, signal, subprocess
for number, code in (
    (signal.SIGTERM, -15), (signal.SIGINT, -2), (signal.SIGUSR1, 76), (signal.SIGKILL, -9)
):
    called = subprocess.Popen(["claude", "wait"], stdout=subprocess.PIPE)
    pidfd = os.pidfd_open(int(called.stdout.readline()))
    called.send_signal(number)
    assert called.wait() == code, (number, called.returncode)
    select.select([pidfd], [], [])
env = os.environ | {"SFA_DEFAULTS_TIMEOUT": "1"}
done = subprocess.run(["claude", "wait"], env=env, capture_output=True)
assert done.returncode == 3 and b"ended as timeout" in done.stderr, done
"""
    done = place.sfactl(
        "run", "-q", "--type", "x", "--name", "root", "--", sys.executable, "-c", caller
    )
    assert done.stderr == ""
    assert place.json("info", "root")["unadmitted"] is None, (
        "neither a shim nor its child was started without asking"
    )


def test_a_terminal(place: World, tmp_path: Path) -> None:
    """The program has the caller's terminal: job control, its size, and a stderr that may be
    redirected."""
    screen = Screen(
        place, "run", "-q", "--stdio", "inherit", "--", "bash", "--norc", "--noprofile", "-i"
    )
    screen.expect("> $")
    screen.type("PS1='inner: ' claude shell; echo left-$?\r")
    screen.expect("inner: $")
    screen.type("sh -c 'echo in-$((1+1)); exec sleep 50'\r")
    screen.expect("in-2")
    screen.type("\x03")
    screen.expect("inner: $")
    screen.resize(33, 77)
    screen.type("stty size\r")
    while screen.expect(r"\d+ \d+\r") != "33 77\r":
        screen.type("stty size\r")
    screen.type("exit 9\r")
    screen.expect("left-9")
    screen.type(f"claude shell 2>{tmp_path}/err\r")
    screen.type("echo redirected >&2; echo written-$((1+1))\r")
    screen.expect("written-2")
    screen.type("exit\r")
    screen.expect("> $")
    assert "\nredirected\n" in (tmp_path / "err").read_text().replace("\r", "")
    screen.type("claude exit 5 & wait $!; echo behind-$?\r")
    screen.expect("behind-5")
    screen.type("claude wait; echo stopped-$?\r")
    screen.expect(r"\d+\r")
    screen.type("\x1a")
    screen.expect("stopped-148")
    screen.type("fg\r")
    screen.expect("claude wait")
    # until then the shell has the terminal, which ignores Ctrl-C while it continues a job
    screen.expect("goes on")
    screen.type("\x03")
    screen.expect("> $")
    screen.type("claude wait | cat\r")
    screen.expect(r"\d+\r")
    screen.type("\x03")
    screen.expect("> $")
    screen.type("exit 6\r")
    assert screen.exit_code() == 6
    screen.close()
    assert "sfactl: stopping" not in screen.text


def outside(world: World, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    env = world.env | {"PATH": path}
    return subprocess.run(
        [shim(world), *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_outside_a_run_it_is_the_program(place: World, tmp_path: Path) -> None:
    """Wherever shims are, as links or copies, and even if a wrapper searches the program again."""
    copies = [tmp_path / name for name in ("link", "hard", "copy")]
    for directory in copies:
        directory.mkdir()
    (copies[0] / "claude").symlink_to(shim(place))
    (copies[1] / "claude").hardlink_to(shim(place))
    (copies[2] / "claude").write_bytes(shim(place).read_bytes())
    (copies[2] / "claude").chmod(0o755)
    shims = ":".join(map(str, [*copies, shim(place).parent]))
    path = f"{shims}:{place.env['PATH']}"
    assert outside(place, "name", path=path).stdout == "None None None\n"
    told = outside(place, "tell", "x", path=path).stdout
    assert (
        told
        == subprocess.run(
            [program(place), "tell", "x"], env=place.env, capture_output=True, text=True
        ).stdout
    )
    assert outside(place, "signal", "15", path=path).returncode == -15
    assert outside(place, "name", path=shims).returncode == 127
    wrapper = tmp_path / "wrapper"
    wrapper.mkdir()
    (wrapper / "claude").write_text(
        '#!/bin/bash\nfor file in $(type -ap claude); do [ $file -ef $0 ] || exec $file "$@"; '
        "done\n"
    )
    (wrapper / "claude").chmod(0o755)
    assert (
        outside(place, "name", path=f"{shims}:{wrapper}:{place.env['PATH']}").stdout
        == "None None None\n"
    )


def test_the_command_of_a_run_is_no_child_of_it(place: World, tmp_path: Path) -> None:
    """The daemon leaves its directory out; launchers and other directories lead to a shim, which
    becomes the program."""

    def run(*words: str, code: int = 0, path: Path | str = "") -> subprocess.CompletedProcess[str]:
        env = f"PATH={path}:{place.env['PATH']}" if path else f"PATH={place.env['PATH']}"
        return place.sfactl("run", "-q", "--env", env, "--", *words, code=code)

    (tmp_path / "claude").symlink_to(shim(place))
    wrapper = tmp_path / "wrapper"
    wrapper.mkdir()
    (wrapper / "claude").write_text(f'#!/bin/sh\nexec {shim(place)} "$@"\n')
    (wrapper / "claude").chmod(0o755)
    for words, path in (
        (["claude"], shim(place).parent),
        (["claude"], tmp_path),
        (["timeout", "60", "nice", "claude"], ""),
    ):
        assert run(*words, "name", path=path).stdout == "claude  None\n"
    assert (
        "claude → claude" in run("timeout", "60", "claude", "call", "claude", "name", code=1).stderr
    )
    assert (
        "leads back to the shim of claude" in run("claude", "name", code=126, path=wrapper).stderr
    )
    place.sfactl(
        "run", "-q", "--env", f"PATH={shim(place).parent}", "--", "claude", "name", code=127
    )


def test_without_a_daemon_nothing_is_started_inside_a_run(place: World) -> None:
    env = place.env | {"SFA_RUN_ID": "a1", "SFA_SOCKET": "/nonexistent"}
    done = subprocess.run(
        [shim(place), "name"],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (69, "")
    assert "claude was not started" in done.stderr
    assert "tell the person that the daemon does not answer" in done.stderr


@variant
@pytest.mark.alone
def test_it_outlives_the_daemon(daemon: World) -> None:
    installed(daemon)
    waiting = daemon.popen("run", "-q", "--", "sh", "-c", "claude wait; echo code $?")
    assert waiting.stdout is not None
    main = int(waiting.stdout.readline())
    os.kill(daemon.json("status")["pid"], signal.SIGUSR2)
    wait_until(lambda: daemon.json("status")["adopted"] == 2, "it has executed itself again")
    assert daemon.json("list", "--name", "claude")["runs"][0]["status"] == "running"
    daemon.kill()
    daemon.begin()
    os.kill(main, signal.SIGUSR1)
    out, _ = waiting.communicate(timeout=PATIENCE)
    # without cgroups, each daemon continues what the one before may have stopped
    ended = out.replace(b"goes on\n", b"")
    assert ended in (b"code 76\n", b"code 70\n"), "70: before Linux 6.15 nothing tells how it ended"


@pytest.mark.alone
def without_agents(farm: Path) -> str:
    """Return a PATH with the system's programs but those of agents, which a machine may have."""
    farm.mkdir()
    for each in Path("/usr/bin").iterdir():
        if each.name not in KNOWN_PROGRAMS:
            (farm / each.name).symlink_to(each)
    return str(farm)


def test_install_list_remove(world: World, tmp_path: Path) -> None:
    """Before the first daemon, and while one runs. Only what sfactl made is replaced or removed."""
    world.env["PATH"] = path = without_agents(tmp_path / "bin")
    assert "install them with" in world.sfactl("shim", "list").stderr
    profile = tmp_path / "shell"
    profile.write_text(
        f'#!/bin/sh\nPATH={path}\n. {tmp_path}/profile\necho hello\nexec /bin/sh -c "$2"\n'
    )
    profile.chmod(0o755)
    (tmp_path / "profile").touch()
    world.env["SHELL"] = str(profile)
    done = world.sfactl("shim", "install", "claude", "env", "claude")
    told = world.json("shim", "list")
    assert (told["login_shell"], told["profile_line"]) == (
        False,
        done.stderr.strip().splitlines()[-1].strip(),
    )
    (tmp_path / "profile").write_text(told["profile_line"])
    assert "not in your PATH: claude" in done.stderr
    assert "env is not an agent program that sfad knows" in done.stderr
    directory = world.state / "shims"
    assert [directory.stat().st_mode & 0o777, world.state.stat().st_mode & 0o777] == [0o755, 0o700]
    found = world.json("shim", "list")
    assert (found["directory"], found["daemon"], found["login_shell"]) == (
        str(directory),
        False,
        True,
    )
    assert [
        (each["program"], each["stands_for"], each["found_by_runs"], each["state"])
        for each in found["shims"]
    ] == [
        ("claude", None, None, "missing"),
        ("env", f"{path}/env", None, "ok"),
    ]
    (directory / "codex").write_text("#!/bin/sh\n")
    for words in (
        ["install", "codex"],
        ["remove", "codex"],
        ["remove", "gemini"],
        ["install", "../x"],
    ):
        world.sfactl("shim", *words, code=2)
    assert (directory / "codex").read_text() == "#!/bin/sh\n"
    (directory / "codex").unlink()
    with world.served():
        assert [each["found_by_runs"] for each in world.json("shim", "list")["shims"]] == [
            True,
            True,
        ]
        (directory / "env").write_bytes(
            (directory / "env").read_bytes().replace(b"#!/", b"#!/old/")
        )
        done = world.sfactl("shim", "list")
        assert "sfactl shim install env" in done.stderr
        assert "sfactl shim install env" in world.sfactl("doctor", code=None).stdout
        assert "outdated" not in world.sfactl("shim", "install", "env").stdout
        assert (
            "inside"
            in world.sfactl("run", "-q", "--", *SFACTL, "shim", "remove", "env", code=77).stderr
        )
        shows_path = ["run", "-q", "--", "sh", "-c", "echo $PATH"]
        assert world.sfactl(*shows_path).stdout == f"{directory}:{path}\n"
        assert [each["program"] for each in world.json("shim", "remove", "env")["shims"]] == [
            "claude"
        ]
        assert (
            world.sfactl("shim", "remove", "claude").stdout == f"removed from {directory}: claude\n"
        )
        assert not directory.exists()
        assert world.sfactl(*shows_path).stdout == f"{path}\n"


@variant
def test_an_interpreter_with_a_long_or_odd_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ('it\'s a "path" $HOME', "x" * 130):
        monkeypatch.setattr(sys, "executable", str(tmp_path / name))
        (tmp_path / name).symlink_to(INTERPRETER)
        made = tmp_path / "claude"
        made.write_bytes(files.text("claude"))
        made.chmod(0o755)
        assert is_stand_in(os.fsencode(made))
        done = subprocess.run(
            [made, "a b", "$x"],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "claude is not installed" in done.stderr) == (127, True), done
