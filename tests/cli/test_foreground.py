"""`sfactl run`: output, stdin, signals and exit code are those of the run."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.harness import wait_until
from tests.tiers import first, variant

from .conftest import PATIENCE, World

Start = Callable[..., subprocess.Popen[bytes]]

STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 5; done"


def line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def run_of(daemon: World) -> str:
    """Return the id of the last run."""
    run = daemon.json("list")["runs"][-1]
    found: str = run["id"]
    return found


def test_output_and_exit_code_are_the_runs_own(daemon: World) -> None:
    done = daemon.sfactl(
        "run", "--name", "me", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7
    )
    assert done.stdout == "out\n"
    starting = "[agent:me] starting: 2m, 25 turns, 1 USD (default; change with --timeout, --limit)"
    assert done.stderr.splitlines()[:2] in ([starting, "err"], ["err", starting])
    assert done.stderr.splitlines()[2].startswith("[agent:me] failed: ")


def test_quiet_says_nothing_of_its_own(daemon: World) -> None:
    assert daemon.sfactl("run", "-q", "--", "true").stderr == ""
    assert daemon.sfactl("run", "--", "true", SFA_QUIET="1").stderr == ""


INSIDE = ("sh", "-c")


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (
            ("--", "no-such-command-anywhere"),
            127,
            "could not be started: cannot execute no-such-command-anywhere: No such file",
        ),
        (
            ("--", "/etc/passwd"),
            126,
            "could not be started: cannot execute /etc/passwd: Permission denied",
        ),
        (
            ("--cwd", "/nonexistent", "--", "true"),
            126,
            "could not be started: cannot enter directory /nonexistent: No such file",
        ),
        (("--timeout", "1", "--", "sleep", "60"), 3, "ended as timeout: "),
        (
            ("--limit", "turns=1", "--", *INSIDE, "$SFACTL report --turns 2; sleep 60"),
            4,
            "ended as failed: used 2 turns",
        ),
        (("--", *INSIDE, "kill -SEGV $$"), 139, "ended as failed: killed by SIGSEGV"),
        (
            ("--", *INSIDE, "$SFACTL stop $SFA_RUN_ID 2>/dev/null"),
            143,
            "ended as cancelled: stopped by",
        ),
        (
            ("--meter", "jsonl", "--", "echo", '{"type": "result", "failed": true}'),
            1,
            "ended as failed: exited with code 0",
        ),
        (("--leaf", "--", *INSIDE, "exec $SFACTL run -q -- true"), 77, "refused: "),
        (
            ("--", *INSIDE, "echo its own words >&2; exit 7"),
            7,
            "ended as failed: exited with code 7",
        ),
        (("--", *INSIDE, "exit 0"), 0, None),
    ],
)
def test_quiet_silences_progress_and_never_the_reason_of_a_failure(
    daemon: World, words: tuple[str, ...], code: int, why: str | None
) -> None:
    said = daemon.sfactl("run", "-q", *words, code=code).stderr.splitlines()
    ours = [line for line in said if line.startswith(("sfactl", "[agent"))]
    assert bool(ours) == (why is not None)
    if why is not None:
        assert all(said.startswith("sfactl: ") for said in ours)
        assert why in ours[0]


@first(1)
@pytest.mark.parametrize("options", ["", "-q"])
def test_a_failure_deep_in_a_tree_is_told_once(daemon: World, options: str) -> None:
    inner = f"$SFACTL run {options} --name deepest -- sh -c 'echo no such key >&2; exit 3'"
    script = f'$SFACTL run {options} --name middle -- sh -c "{inner}"'
    done = daemon.sfactl(
        "run", *options.split(), "--name", "outer", "--", "sh", "-c", script, code=3
    )
    said = [line for line in done.stderr.splitlines() if "exited with code" in line]
    outer, middle, deepest = (run["id"] for run in daemon.json("list")["runs"][-3:])
    assert [line.partition(": exited with ")[2] for line in said] == [
        "code 3: no such key",
        f"code 3, because of {deepest}",
        f"code 3, because of {middle} › {deepest}",
    ]
    why = daemon.sfactl("why", outer).stdout
    assert why.endswith(
        f": exited with code 3: {middle} › {deepest}: exited with code 3: no such key\n"
    )


def test_quiet_in_the_background_tells_what_could_not_be_started(daemon: World) -> None:
    for words, code in ((("no-such-command-anywhere",), 127), (("/etc/passwd",), 126)):
        waited = daemon.sfactl("spawn", "-w", "-q", "--", *words, code=code)
        assert f"could not be started: cannot execute {words[0]}: " in waited.stderr
        done = daemon.sfactl("spawn", "-q", "--", *words, code=code)
        assert done.stderr.startswith(
            f"sfactl: {done.stdout.strip()} could not be started: cannot execute {words[0]}: "
        )


def test_quiet_does_not_tell_the_caller_what_it_did_itself(start: Start) -> None:
    process = start("run", "-q", "--", "sh", "-c", "echo ready; sleep 60")
    assert line(process) == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_the_first_ctrl_c_says_what_it_did_and_what_the_next_would(
    start: Start, daemon: World
) -> None:
    process = start("run", "--", "sh", "-c", STUBBORN)
    assert line(process) == b"ready\n"
    run = run_of(daemon)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while (
        said := process.stderr.readline()
    ) != f"sfactl: stopping {run}; Ctrl-C again to kill\n".encode():
        assert said, "it said nothing"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert b"Ctrl-C" not in process.stderr.read()


def test_a_pause_of_an_agent_program_says_what_a_long_one_does(
    daemon: World, tmp_path: Path
) -> None:
    agent = tmp_path / "codex"
    agent.write_text("#!/bin/sh\nexec sleep 60\n")
    agent.chmod(0o755)
    for command, told in ((str(agent), True), ("sleep", False)):
        run = daemon.spawn("--", command, "60")
        assert (
            "more than 4 minutes in the middle of a reply" in daemon.sfactl("pause", run).stderr
        ) is told


def test_verbose_shows_events(daemon: World) -> None:
    assert (
        "run_completed" in daemon.sfactl("run", "-v", "--name", "me", "--", "sleep", "0.2").stderr
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["no-such-command-anywhere"], 127),
        (["/etc/passwd"], 126),
        (["sh", "-c", "kill -SEGV $$"], 139),
        (["sh", "-c", "kill -KILL $$"], 137),
    ],
)
def test_outcomes(daemon: World, command: list[str], code: int) -> None:
    daemon.sfactl("run", "--", *command, code=code)


def test_a_missing_directory_is_not_a_missing_command(daemon: World) -> None:
    daemon.sfactl("run", "--cwd", "/nonexistent", "--", "true", code=126)


def test_a_timeout_is_one_whatever_the_agent_returns(daemon: World) -> None:
    daemon.sfactl(
        "run", "--timeout", "1", "--", "sh", "-c", "trap 'exit 0' TERM; sleep 9 & wait", code=3
    )


def test_output_comes_while_the_run_goes_on_and_stdin_reaches_it(start: Start) -> None:
    process = start("run", "-q", "--", "sh", "-c", "echo ready; read word; echo got $word")
    assert line(process) == b"ready\n"
    assert process.stdin is not None
    process.stdin.write(b"that\n")
    assert line(process) == b"got that\n"
    assert process.wait(PATIENCE) == 0


def test_an_agent_with_a_task_does_not_wait_for_a_pipe_that_says_nothing(
    world: World, tmp_path: Path
) -> None:
    """Codex reads a pipe to its end before it begins: that of a supervisor never ends."""
    (tmp_path / "codex").write_text("#!/bin/sh\necho then:\ncat\n")
    (tmp_path / "codex").chmod(0o755)
    world.env["PATH"] = f"{tmp_path}:{world.env['PATH']}"
    with world.served():
        silent = world.popen("run", "-q", "--no-gateway", "codex", "do it")
        try:
            assert silent.stdout is not None
            assert silent.stdout.read() == b"then:\n"
            assert silent.wait(PATIENCE) == 0
        finally:
            silent.kill()
            silent.communicate()
        told = world.sfactl("run", "-q", "--no-gateway", "codex", "do it", stdin="a diff\n")
        assert told.stdout == "then:\na diff\n"


def test_stdin_is_passed_and_not_pumped(daemon: World) -> None:
    """Input that the run does not read is left for the next reader."""
    script = "$SFACTL run -q -- sh -c 'read one; echo run: $one'; cat"
    done = subprocess.run(
        ["sh", "-c", script],
        env=daemon.env,
        input="first\nsecond\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == "run: first\nsecond\n"


@first(1)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_do_no_harm(daemon: World, closed: str) -> None:
    script = f"$SFACTL run -q -- sh -c 'cat; echo out; echo err >&2; exit 4' {closed}"
    done = subprocess.run(
        ["sh", "-c", script],
        env=daemon.env,
        input=b"",
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 4
    assert done.stdout == (b"" if ">&-" in closed.replace("2>&-", "") else b"out\n")


def test_everything_written_arrives_in_order(daemon: World) -> None:
    done = daemon.sfactl("run", "-q", "--", "seq", "300000")
    assert done.stdout == "".join(f"{n}\n" for n in range(1, 300_001))


def test_a_truncated_output_starts_again_with_a_note(start: Start) -> None:
    process = start(
        "run",
        "-q",
        "--",
        "sh",
        "-c",
        "echo first; read go; : >/proc/self/fd/1; read go; echo second",
    )
    assert line(process) == b"first\n"
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"go\n")
    assert b"truncated" in process.stderr.readline()
    process.stdin.write(b"go\n")
    assert line(process) == b"second\n"
    assert process.wait(PATIENCE) == 0


def test_a_reader_that_goes_away_ends_client_and_run_quietly(daemon: World) -> None:
    script = "$SFACTL run -q --name talker -- yes | head -n 1; exit"
    done = subprocess.run(
        ["sh", "-c", script], env=daemon.env, capture_output=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout, done.stderr) == (b"y\n", b"")
    daemon.sfactl("wait", run_of(daemon), code=143)


@first(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_first_signal_stops_the_run_with_that_signal(
    start: Start, daemon: World, number: int, code: int
) -> None:
    name = signal.Signals(number).name.removeprefix("SIG")
    process = start(
        "run",
        "-q",
        "--",
        "sh",
        "-c",
        f"trap 'echo {name}; exit 0' {name}; echo ready; while :; do sleep 0.1; done",
    )
    assert line(process) == b"ready\n"
    process.send_signal(number)
    assert line(process) == name.encode() + b"\n"
    assert process.wait(PATIENCE) == code
    assert daemon.status(run_of(daemon)) == "cancelled"


def test_a_second_signal_skips_the_grace(start: Start, daemon: World) -> None:
    process = start("run", "-q", "--grace", "50", "--", "sh", "-c", STUBBORN)
    assert line(process) == b"ready\n"
    process.send_signal(signal.SIGINT)
    wait_until(lambda: daemon.status(run_of(daemon)) != "running", "the daemon has heard the first")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 130


def test_sigquit_goes_to_the_main_process_only(start: Start) -> None:
    process = start(
        "run",
        "-q",
        "--",
        "sh",
        "-c",
        "trap 'echo quit; exit 5' QUIT; echo ready; while :; do sleep 0.1; done",
    )
    assert line(process) == b"ready\n"
    process.send_signal(signal.SIGQUIT)
    assert line(process) == b"quit\n"
    assert process.wait(PATIENCE) == 5


def test_a_reader_that_does_not_read_cannot_keep_ctrl_c_from_the_run(start: Start) -> None:
    process = start("run", "-q", "--", "sh", "-c", "echo ready; exec yes")
    assert line(process) == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stderr is not None
    # Nothing is read meanwhile: the run ends; the client still has output to deliver, or a second
    # Ctrl-C ends that.
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(PATIENCE) in (130, 141)


def test_the_run_ends_with_its_client(start: Start, daemon: World) -> None:
    process = start("run", "-q", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert line(process) == b"ready\n"
    process.kill()
    daemon.sfactl("wait", run_of(daemon), code=143)


def test_a_kept_run_does_not(start: Start, daemon: World) -> None:
    process = start("run", "-q", "--keep", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert line(process) == b"ready\n"
    process.kill()
    process.wait()
    assert daemon.status(run_of(daemon)) == "running"


def test_json_prints_the_final_run_alone(daemon: World) -> None:
    run = daemon.json("run", "--", "sh", "-c", "echo lost; exit 3", code=3)
    assert (run["status"], run["exit_code"], run["name"][:3]) == ("failed", 3, "sh-")
    assert daemon.sfactl("logs", run["id"]).stdout == "lost\n"


def test_a_status_file_receives_the_final_run(daemon: World, tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    daemon.sfactl("run", "--status-file", str(path), "--", "sh", "-c", "exit 75", code=75)
    assert msgspec.json.decode(path.read_bytes())["exit_code"] == 75
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("status")] == ["status.json"]


def test_a_status_file_takes_the_place_of_a_regular_file_only(
    daemon: World, tmp_path: Path
) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("mine")
    link.symlink_to(target)
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path):
        words = ("--name", "unstarted", "--status-file", str(path), "--", "true")
        done = daemon.sfactl("run", *words, code=2)
        assert f"{path}: it exists, and is no regular file" in done.stderr
    assert (link.is_symlink(), pipe.is_fifo(), target.read_text()) == (True, True, "mine")
    assert daemon.json("list", "--name", "unstarted") == {"runs": []}


def test_a_status_file_without_room_leaves_nothing(daemon: World, tmp_path: Path) -> None:
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
        "from sfactl.__main__ import main; main()"
    )
    words = ["run", "-q", "--status-file", str(tmp_path / "status.json"), "--", "true"]
    done = subprocess.run(
        [sys.executable, "-c", limited, *words],
        env=daemon.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "File too large" in done.stderr) == (75, True), done.stderr
    assert [p.name for p in tmp_path.iterdir() if "status" in p.name] == []


def test_a_loop_is_refused_with_its_path(daemon: World) -> None:
    inner = "$SFACTL run --json --name me -- true"
    done = daemon.sfactl("run", "-q", "--name", "me", "--", "sh", "-c", inner, code=1)
    refused = msgspec.json.decode(done.stdout)["refused"]
    assert (refused["kind"], refused["path"]) == ("loop", ["me", "me"])
    said = daemon.sfactl(
        "run", "-q", "--name", "me", "--", "sh", "-c", inner.replace("--json", ""), code=1
    ).stderr
    assert said.startswith("sfactl: refused: ")
    assert "me → me" in said


def test_depth_is_refused_naming_the_variable(daemon: World) -> None:
    inner = "$SFACTL run -q --name b -- sh -c '$SFACTL run --name c -- true'"
    done = daemon.sfactl(
        "run", "-q", "--name", "a", "--", "sh", "-c", inner, code=1, SFA_MAX_DEPTH="2"
    )
    assert "SFA_MAX_DEPTH" in done.stderr


def test_a_leaf_may_not_start_others(daemon: World) -> None:
    done = daemon.sfactl(
        "run", "-q", "--leaf", "--name", "leaf", "--", "sh", "-c", "$SFACTL run -- true", code=77
    )
    # why an agent failed that ends because it was refused is this reason, and not only a number
    assert "started with --leaf" in done.stderr.splitlines()[-1]
    assert "started with --leaf" in daemon.json("why", "leaf")["reason"]["message"]


def test_environment_directory_and_umask_are_the_clients(daemon: World, tmp_path: Path) -> None:
    words = [
        "run",
        "-q",
        "--env",
        "ADDED=a b",
        "--cwd",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        "echo $ADDED; pwd; umask; touch made",
    ]
    script = 'umask 027; $SFACTL "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words],
        env=daemon.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == f"a b\n{tmp_path}\n0027\n"
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o640


def test_inherited_descriptors_are_the_clients_own(daemon: World, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(
            [
                *daemon.env["SFACTL"].split(),
                "run",
                "-q",
                "--stdio",
                "inherit",
                "--",
                "sh",
                "-c",
                "cat; readlink /proc/self/fd/1",
            ],
            env=daemon.env,
            input=b"in\n",
            stdout=out,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0
    assert (tmp_path / "out").read_text() == f"in\n{os.path.realpath(tmp_path / 'out')}\n"


@pytest.mark.parametrize("config", ["[quotas]\ntrees_per_user = 1\n"])
def test_what_is_queued_says_so_and_starts_or_is_cancelled(start: Start, daemon: World) -> None:
    first = daemon.spawn("--", "sleep", "60")
    patient, impatient = (
        start("run", "--name", "p", "--", "true"),
        start("run", "--name", "i", "--", "true"),
    )
    for process, name in ((patient, "p"), (impatient, "i")):
        assert process.stderr is not None
        words = "queued: you have 1 live tree, and quotas.trees_per_user is 1; a slot is free"
        assert process.stderr.readline().startswith(f"[agent:{name}] {words}".encode())
    assert "refused" in daemon.sfactl("run", "--no-queue", "--", "true", code=1).stderr
    impatient.send_signal(signal.SIGINT)
    assert impatient.wait(PATIENCE) == 130
    daemon.sfactl("stop", first)
    assert patient.stderr is not None
    starting, ended = patient.stderr.read().splitlines()
    assert starting.startswith(b"[agent:p] starting: 2m, 25 turns, 1 USD (default")
    assert ended == b"[agent:p] completed"
    assert patient.wait(PATIENCE) == 0


def test_spawn_wait_is_run(daemon: World) -> None:
    done = daemon.sfactl("spawn", "-wq", "--", "sh", "-c", "echo out; exit 6", code=6)
    assert done.stdout == "out\n"
    assert done.stderr.endswith("ended as failed: exited with code 6\n")


@pytest.mark.alone
def test_a_run_outlives_its_daemon_and_its_output_goes_on(
    start: Start, daemon: World, tmp_path: Path
) -> None:
    script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; echo after; exit 5"
    process = start("run", "-q", "--cwd", str(tmp_path), "--", "sh", "-c", script)
    assert line(process) == b"ready\n"
    assert process.stderr is not None
    daemon.kill()
    assert b"went away" in process.stderr.readline()
    (tmp_path / "go").touch()
    assert line(process) == b"after\n"
    daemon.begin()
    assert process.wait(PATIENCE) in (5, 70), "its own code where the kernel still tells it"
    assert line(process) == b""


@variant
@pytest.mark.alone
def test_ctrl_c_without_a_daemon_stops_the_run_when_there_is_one(
    start: Start, daemon: World
) -> None:
    process = start("run", "-q", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert line(process) == b"ready\n"
    assert process.stderr is not None
    daemon.kill()
    assert b"went away" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert b"when the daemon is back" in process.stderr.readline()
    daemon.begin()
    assert process.wait(PATIENCE) == 130
    assert daemon.status(run_of(daemon)) in ("cancelled", "lost")


@pytest.mark.alone
def test_waiting_for_it_can_be_ended(start: Start, daemon: World) -> None:
    process = start("run", "-q", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert line(process) == b"ready\n"
    assert process.stderr is not None
    daemon.kill()
    assert b"went away" in process.stderr.readline()
    for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        assert b"when the daemon is back" in process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 130
    daemon.begin()
