"""Isolated runs, by real daemons: what they can do as other runs can, and what they cannot."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Isolation, RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, environment, running, spawn, started, stopped, wait_until
from tests.loader import traced, tracing
from tests.users import FIRST, as_user, needs_root, open_directory, readable_by_all

from . import escaping
from .provider import Provider
from .test_gateway import CALLER, calling, config, killed_gateway, results

ON, NET = Isolation(), Isolation(network=False)


pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def client(share: Start, containment: str) -> Iterator[Client]:
    """Return a client of a daemon with each containment."""
    with share(mode=containment).client() as client:
        yield client


def python(
    client: Client, work: Path, text: str, *words: object, isolation: Isolation = ON, **options: Any
) -> RunInfo:
    """Start an isolated Python program in the directory `work`."""
    (work / "program.py").write_text(text)
    argv = [sys.executable, "program.py", *map(str, words)]
    return started(client, argv, cwd=os.fsencode(work), isolation=isolation, **options)


FACTS = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
def can_write(path):
    try:
        with open(path, "w"):
            return True
    except OSError:
        return False
print(json.dumps({
    "pid": os.getpid(),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "capabilities": [status[name].strip() for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"].strip(),
    "written": [path for path in PATHS if can_write(path)],
}))
"""


def test_what_a_run_is_in_its_sandbox(share: Start, containment: str, tmp_path: Path) -> None:
    daemon = share(mode=containment)
    for name in ("work", "more", "other"):
        (tmp_path / name).mkdir()
    paths = [
        str(tmp_path / "work" / "a"),
        str(tmp_path / "more" / "a"),
        str(tmp_path / "other" / "a"),
        "/usr/a",
        "/tmp/a",
    ]
    with daemon.client() as client:
        allowed = Isolation(writable=[os.fsencode(tmp_path / "more")])
        run = ended(
            client,
            python(client, tmp_path / "work", f"PATHS = {paths}\n{FACTS}", isolation=allowed).id,
        )
    facts = json.loads(daemon.output(run.id))
    assert facts == {
        "pid": 2,
        "processes": [1, 2],
        "capabilities": ["0" * 16] * 4,
        "no_new_privs": "1",
        "written": [paths[0], paths[1], paths[4]],
    }
    assert (tmp_path / "more" / "a").exists()


@pytest.mark.parametrize(
    ("text", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code(client: Client, tmp_path: Path, text: str, code: int) -> None:
    """A signal that ended the command is told by bubblewrap as 128 + n."""
    run = ended(client, python(client, tmp_path, text).id)
    assert (run.status, run.exit_code, run.signal) == (Status.FAILED, code, None)


POLITE = """
import pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path(f"got-{number}").touch()
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, end)
pathlib.Path("ready").touch()
while True:
    time.sleep(1)
"""


def test_signals_reach_the_command(client: Client, tmp_path: Path) -> None:
    """Those of a stop, and those to the main process, which outside is bubblewrap."""
    for number, send in (
        (15, lambda run: stopped(client, run)),
        (10, lambda run: signal_main(client, run, 10)),
    ):
        work = tmp_path / str(number)
        work.mkdir()
        run = python(client, work, POLITE)
        wait_until((work / "ready").exists, "the command is ready")
        send(run.id)
        assert ended(client, run.id).exit_code == 3
        assert (work / f"got-{number}").exists()


def signal_main(client: Client, run: str, number: int) -> None:
    """Send a signal to the main process."""
    client.call(m.Signal(id=client.next_id(), run=run, signal=number), m.Done)


# ---- what a run starts


CHILD = """
import subprocess, sys
for words in WORDS:
    done = subprocess.run([sys.executable, "-m", "sfactl", *words], capture_output=True, text=True)
    print([done.returncode, done.stdout, done.stderr])
"""


def children(
    client: Client, daemon: Daemon, work: Path, *words: list[str], isolation: Isolation = ON
) -> list[tuple[int, str, str]]:
    """Return exit code, stdout and stderr of each `sfactl` within an isolated run."""
    run = ended(
        client, python(client, work, f"WORDS = {list(words)}\n{CHILD}", isolation=isolation).id
    )
    return [tuple(ast.literal_eval(line)) for line in daemon.output(run.id).splitlines()]


def test_children_are_isolated_as_their_parent(
    share: Start, containment: str, tmp_path: Path
) -> None:
    """The daemon identifies a client in another pid namespace; a child has the parent's sandbox,
    wherever it starts."""
    daemon = share(mode=containment)
    for name in ("work", "other"):
        (tmp_path / name).mkdir()
    script = (
        f"touch {tmp_path}/work/mine {tmp_path}/other/not-mine; cat /proc/1/comm; "
        "echo $$ $SFA_DEPTH"
    )
    with daemon.client() as client:
        mine, wide = children(
            client, daemon, tmp_path / "work",
            ["run", "-q", "--cwd", "/usr", "--", "sh", "-c", script],
            ["spawn", "--writable", str(tmp_path / "other"), "--", "true"],
        )  # fmt: skip
    assert (mine[0], mine[1]) == (0, "bwrap\n2 1\n"), mine
    assert (tmp_path / "work" / "mine").exists()
    assert not (tmp_path / "other" / "not-mine").exists()
    assert wide[0] == 2
    assert "leave out --writable" in wide[2]


def test_isolation_is_only_tightened(share: Start, tmp_path: Path) -> None:
    """A child may take its network away, and cannot have it back."""
    daemon = share()
    show = ["--", "cat", "/proc/net/dev"]
    with daemon.client() as client:
        (more,) = children(client, daemon, tmp_path, ["run", "-q", "--isolate=net", *show])
        (less,) = children(
            client, daemon, tmp_path, ["run", "-q", "--isolate", *show], isolation=NET
        )
    for code, found, error in (more, less):
        assert (code, interfaces(found)) == (0, ["lo"]), error


def interfaces(found: str) -> list[str]:
    """Return the names in the text of /proc/net/dev."""
    return [line.split(":")[0].strip() for line in found.splitlines()[2:]]


def test_the_config_says_the_least(start: Start, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    daemon = start(config=f"[isolation]\ndefault = 'net'\nwritable = ['{more}']")
    with daemon.client() as client:
        run = started(
            client,
            ["sh", "-c", f"echo x > {more}/a; cat /proc/net/dev"],
            cwd=os.fsencode(tmp_path),
            isolation=ON,
            gateway=False,
        )
        assert run.isolation == "offline"
        assert ended(client, run.id).exit_code == 0
        assert (
            client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run.isolation
            == "offline"
        )
    assert (more / "a").exists()
    assert interfaces(daemon.output(run.id)) == ["lo"]


@pytest.mark.parametrize("network", [True, False])
def test_the_environment_takes_effect_inside_only(
    common: Daemon, tmp_path: Path, network: bool
) -> None:
    """Neither bubblewrap nor what starts it loads what the command's environment names."""
    given = [
        b"EMPTY=",
        b"LATIN=\xe9\xff",
        b"TWICE=1",
        b"TWICE=2",
        b"=x",
        b".hidden=1",
        b"no equals sign",
    ]
    with common.client() as client:
        env = [*tracing(tmp_path / "traced"), *given]
        run = ended(
            client,
            started(
                client,
                ["env", "-0"],
                cwd=os.fsencode(tmp_path),
                env=env,
                isolation=Isolation(network=network),
                gateway=False,  # whose shims change PATH where there are agent programs
            ).id,
        )
    assert run.exit_code == 0
    assert traced(tmp_path / "traced") == {("env", os.geteuid())}
    found = (common.state_dir / "output" / f"{run.id}.out").read_bytes().split(b"\0")
    assert {*env[:3], b"EMPTY=", b"LATIN=\xe9\xff", b"TWICE=1", b".hidden=1"} <= set(found)
    assert not {b"TWICE=2", b"=x", b"no equals sign"} & set(found)


def test_more_variables_than_bubblewrap_takes(common: Daemon, tmp_path: Path) -> None:
    with common.client() as client:
        for count, code in ((2000, 0), (3000, 126)):
            env = [b"PATH=/usr/bin:/bin", *(b"V%d=" % number for number in range(count))]
            run = started(client, ["true"], cwd=os.fsencode(tmp_path), env=env, isolation=ON)
            assert ended(client, run.id).exit_code == code
    assert "at most 2048 are possible" in common.errors(run.id)


REPLACING = """
import os, subprocess, sys
victim = sys.argv[1]
if not os.path.exists("../once"):
    open("../once", "w").close()
    os.rename("../project", "../moved")
    os.symlink(victim, "../project")
    child = ["-m", "sfactl", "run", "--cwd", "/usr", "--", "touch", victim + "/by-child"]
    subprocess.run([sys.executable, *child])
    raise SystemExit(3)
open("by-retry", "w").close()
"""


def test_a_working_directory_replaced_by_a_link(share: Start, tmp_path: Path) -> None:
    """What is writable does not move with it, for a child or for the next attempt."""
    daemon = share()
    victim, project = tmp_path / "victim", tmp_path / "work" / "project"
    for path in (victim, project):
        path.mkdir(parents=True)
    (tmp_path / "work" / "program.py").write_text(REPLACING)
    argv = [sys.executable, str(tmp_path / "work" / "program.py"), str(victim)]
    isolation = Isolation(writable=[os.fsencode(tmp_path / "work")])
    with daemon.client() as client:
        run = ended(
            client,
            started(
                client,
                argv,
                cwd=os.fsencode(project),
                isolation=isolation,
                attempts=2,
                retry_delay=0.01,
            ).id,
        )
    assert (tmp_path / "work" / "moved").is_dir()
    assert list(victim.iterdir()) == []
    assert run.exit_code == 126
    errors = daemon.errors(run.id)
    assert errors.count(f"leads to {victim} by the link {project}") == 2, errors


AGENT = """#!{python}
import os, subprocess, sys
victim = {victim!r}
os.environ["CLAUDE_CONFIG_DIR"] = victim
subprocess.run([sys.executable, "-m", "sfactl", "run", "--", "touch", victim + "/by-child"])
open({own!r} + "/mine", "w").close()
"""


def test_a_child_cannot_say_where_its_agents_files_are(share: Start, tmp_path: Path) -> None:
    daemon = share()
    victim, own, work = (tmp_path / name for name in ("victim", "own", "work"))
    for path in (victim, own, work):
        path.mkdir()
    (work / "claude").write_text(
        AGENT.format(python=sys.executable, victim=str(victim), own=str(own))
    )
    (work / "claude").chmod(0o755)
    env = [*environment(), b"CLAUDE_CONFIG_DIR=" + os.fsencode(own)]
    with daemon.client() as client:
        run = ended(
            client,
            started(
                client, [str(work / "claude")], cwd=os.fsencode(work), env=env, isolation=ON
            ).id,
        )
    assert run.exit_code == 0
    assert (own / "mine").exists()
    assert list(victim.iterdir()) == []


def test_who_isolates_a_run_in_a_checkout_is_warned_of_its_git(
    common: Daemon, tmp_path: Path
) -> None:
    hook = "mkdir -p .git/hooks; echo 'touch /tmp/executed' > .git/hooks/post-checkout"
    line = f"it could write to {tmp_path}/.git: look at config and hooks there before you type git"

    def told(*options: str) -> list[str]:
        """Return what the verbs say of a run that leaves a hook."""
        done = common.sfactl("run", *options, "--", "sh", "-c", hook, cwd=str(tmp_path))
        assert done.returncode == 0, done.stderr
        run = json.loads(common.sfactl("list", "--limit-rows", "1", "--json").stdout)["runs"][-1]
        after = [common.sfactl(verb, run["id"]) for verb in ("why", "wait", "info")]
        return [each.stdout + each.stderr for each in (done, *after)]

    assert all(line in said for said in told("--isolate"))
    assert not any("could write" in said for said in told())


def test_what_is_refused(common: Daemon) -> None:
    """By the daemon, or before the command is executed; the output says why."""
    with common.client() as client:
        reply = spawn(client, ["true"], isolation=Isolation(writable=[b"relative"]))
        assert isinstance(reply, m.Error)
        assert "absolute" in reply.message
        state = os.fsencode(common.state_dir)
        for path, why in (
            (state, "belongs to the daemon"),
            (os.path.dirname(state), "is protected"),
            (b"/nosuch", "does not exist"),
        ):
            run = ended(client, started(client, ["true"], isolation=Isolation(writable=[path])).id)
            assert run.exit_code == 126
            assert why in common.errors(run.id)
        run = ended(client, started(client, ["nosuch"], isolation=ON).id)
        assert (run.exit_code, run.status) == (127, Status.FAILED)


REOPENING = """
import hashlib, os, sys
print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())
try:
    os.pwrite(os.open("/proc/self/fd/0", os.O_RDWR), b"attacked", 0)
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("option", ["--isolate", "--isolate=net"])
def test_a_file_as_stdin_can_only_be_read(common: Daemon, tmp_path: Path, option: str) -> None:
    """By /proc/self/fd/0 the command would open it for writing, on a mount of the machine."""
    (tmp_path / "program.py").write_text(REOPENING)
    content = os.urandom(1 << 20)
    (tmp_path / "data").write_bytes(content)
    with (tmp_path / "data").open("rb") as data:
        done = common.sfactl(
            "run", "-q", option, "--", sys.executable, "program.py", stdin=data, cwd=str(tmp_path)
        )
    assert done.stdout.splitlines()[0] == hashlib.sha256(content).hexdigest(), done
    assert (tmp_path / "data").read_bytes() == content


def test_a_file_as_stdin_that_the_command_does_not_read(common: Daemon, tmp_path: Path) -> None:
    """What passes it on ends with the command."""
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    with (tmp_path / "data").open("rb") as data:
        done = common.sfactl(
            "run", "-q", "--isolate", "--", "sh", "-c", "exit 7", stdin=data, cwd=str(tmp_path)
        )
    assert done.returncode == 7


def test_what_the_daemon_executes_is_not_writable(start: Start, tmp_path: Path) -> None:
    """Its config, which names programs, and its own code: both would be executed outside of the
    sandbox."""
    daemon = start()
    daemon.stop()
    (tmp_path / "work").mkdir()
    daemon.config = tmp_path / "work" / "sfad.toml"
    daemon.config.touch()
    daemon.restart()
    code = Path(escaping.__file__).parents[2]
    with daemon.client() as client:
        for place, script in (
            (tmp_path / "work", "echo '[hooks]' >> sfad.toml"),
            (code, "touch attacked"),
            (code / "sfad", "touch attacked"),
        ):
            run = ended(
                client,
                started(client, ["sh", "-c", script], cwd=os.fsencode(place), isolation=ON).id,
            )
            assert run.exit_code not in (0, 126)
            said = daemon.errors(run.id)
            assert (
                f"the working directory {place} is read-only, "
                "because files of sfad itself are there"
            ) in said
        for place in (tmp_path / "work", code):
            run = ended(
                client,
                started(client, ["true"], isolation=Isolation(writable=[os.fsencode(place)])).id,
            )
            assert run.exit_code == 126
    assert daemon.config.read_text() == ""
    assert not list(code.glob("**/attacked"))


SHARED = 'mount --make-private / && mount --bind "$0" "$0" && mount --make-shared "$0" && exec "$@"'
LATER = """
import os, pathlib, sys, time
pathlib.Path("ready").touch()
while not os.path.exists("go"):
    time.sleep(0.01)
print(os.listdir(sys.argv[1]))
pathlib.Path(sys.argv[1], "written").touch()
"""


@needs_root
def test_what_is_mounted_later_is_not_seen(tmp_path: Path) -> None:
    """The kernel would show it in what is readable, and it would be writable there."""
    for name in ("d", "work", "shown/disk"):
        (tmp_path / name).mkdir(parents=True)
    disk = tmp_path / "shown" / "disk"
    own = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", SHARED, str(tmp_path)]
    with running(tmp_path / "d", wrap=own) as daemon, daemon.client() as client:
        mounted = [
            "nsenter",
            "--mount",
            "--target",
            str(daemon.pid),
            "sh",
            "-c",
            'mount -t tmpfs sfad-test "$0" && touch "$0/secret"',
        ]
        run = python(
            client,
            tmp_path / "work",
            LATER,
            disk,
            isolation=Isolation(readable=[os.fsencode(tmp_path / "shown")]),
        )
        wait_until((tmp_path / "work" / "ready").exists, "it looks")
        subprocess.run([*mounted, str(disk)], check=True)
        (tmp_path / "work" / "go").touch()
        assert ended(client, run.id).exit_code == 1
        assert daemon.output(run.id) == "[]\n"
        assert "Read-only file system" in daemon.errors(run.id)


def test_a_sandbox_outlives_its_daemon(start: Start, containment: str, tmp_path: Path) -> None:
    """The next daemon stops the command with the same grace, and reads how it ended."""
    work = tmp_path / "work"
    work.mkdir()
    daemon = start(mode=containment)
    with daemon.client() as client:
        run = python(client, work, POLITE)
        wait_until((work / "ready").exists, "the command is ready")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert not stopped(client, run.id).survivors
        assert ended(client, run.id).status is Status.CANCELLED
    assert (work / "got-15").exists()


# ---- the gateway


def test_only_the_gateway_is_reached(start: Start, containment: str, provider: Provider) -> None:
    """Calls of several threads pass, also to the next gateway, and are charged to the run. The
    provider itself is out of reach."""
    daemon = start(config=config(provider), mode=containment)
    direct = (
        f"import socket; socket.create_connection(('127.0.0.1', {provider.url.rsplit(':', 1)[1]}))"
    )
    with daemon.client() as client:
        for _ in range(2):
            run = isolated_call(client, threads=4, calls=2, output=100)
            assert ended(client, run.id).status is Status.COMPLETED, results(daemon, run.id)
            assert [call["status"] for call in results(daemon, run.id)] == [200] * 8
            assert info_calls(client, run.id) == 8
            killed_gateway(daemon)
        failed = ended(
            client, started(client, [sys.executable, "-c", direct], isolation=NET, gateway=True).id
        )
        assert failed.exit_code == 1
        assert "ConnectionRefusedError" in daemon.errors(failed.id)


def isolated_call(client: Client, **plan: Any) -> RunInfo:
    return started(client, [sys.executable, CALLER, json.dumps(plan)], isolation=NET, gateway=True)


def info_calls(client: Client, run: str) -> int | None:
    return client.call(m.Info(id=client.next_id(), run=run), m.RunReply).run.calls


def test_a_run_without_the_gateway_cannot_call_it(start: Start, provider: Provider) -> None:
    """It would spend the operator's key. That holds for what it starts, too."""
    daemon = start(config=config(provider, enabled=False))
    with daemon.client() as client:
        used = calling(client, gateway=True, output=10, then="/nosuch")
        wait_until(lambda: results(daemon, used.id), "the gateway has answered")
        port = json.loads((daemon.state_dir / "gateway.json").read_text())["port"]
        argv = [
            "env",
            f"ANTHROPIC_BASE_URL=http://127.0.0.1:{port}/anthropic",
            sys.executable,
            CALLER,
            json.dumps({"output": 10}),
        ]
        for chosen in (None, False):
            run = ended(client, started(client, argv, gateway=chosen).id)
            assert [call["status"] for call in results(daemon, run.id)] == [403]
    assert len(provider.bills) == 1


# ---- other users


@needs_root
def test_the_daemon_of_root_isolates_runs_of_others() -> None:
    """A user of the system's daemon sees its socket as of a user that has no number in the sandbox,
    and trusts it there."""
    with open_directory() as place:
        home = place / "home"
        home.mkdir(mode=0o700)
        os.chown(home, FIRST, FIRST)
        work = place / "work"
        work.mkdir(mode=0o755)
        script = work / "ask.py"
        script.write_text(
            "from sfactl.connecting.connection import connect\nwith connect(None) "
            "as client: print(client.welcome.run)\n"
        )
        interpreter = Path(sys.executable).resolve().name
        with running(
            _made(place / "d"), config="[access]\nusers = 'all'", wrap=readable_by_all(place)
        ) as daemon:
            variables = {
                "PATH": "/usr/bin:/bin",
                "HOME": home,
                "PYTHONPATH": f"{place}/code:{place}/site",
            }
            env = [os.fsencode(f"{key}={value}") for key, value in variables.items()]

            def ask() -> RunInfo:
                with Client(daemon.socket) as client:
                    argv = [place / "python" / "bin" / interpreter, script]
                    return ended(
                        client,
                        started(client, argv, cwd=os.fsencode(work), env=env, isolation=ON).id,
                    )

            run = as_user(FIRST, ask)
            assert daemon.output(run.id) == f"{run.id}\n", daemon.errors(run.id)


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o755)
    return directory


WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
steps = [(0x20, 0, 0, 0), (0x35, 0, 2, 444), (0x35, 1, 0, 447), (6, 0, 0, 0x50001)]
steps.append((6, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = struct.pack("@HP", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Executes a command whose system calls of Landlock, 444 to 446, fail with EPERM: as in
systemd-nspawn."""


def test_where_a_container_forbids_landlock(tmp_path: Path) -> None:
    with running(tmp_path, wrap=[sys.executable, "-c", WITHOUT_LANDLOCK]) as daemon:
        with daemon.client() as client:
            run = ended(client, started(client, ["echo", "inside"], isolation=ON).id)
            assert (run.status, daemon.output(run.id)) == (Status.COMPLETED, "inside\n")
        words = [sys.executable, "-c", WITHOUT_LANDLOCK, sys.executable, "-m", "sfactl", "doctor"]
        report = subprocess.run(
            words, env=daemon.env, capture_output=True, text=True, check=False
        ).stdout
        assert "ok     isolation" in report
        assert "warn   abstract sockets: --isolate does not close off" in report
