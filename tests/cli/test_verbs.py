"""The other verbs, with a daemon."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from sfad.protocol.types import RunInfo
from tests.harness import wait_until
from tests.tiers import variant

from .conftest import PATIENCE, SFACTL, World

Start = Callable[..., subprocess.Popen[bytes]]

CONTRACT = """
    id name kind type status parent_id root_id depth chain pid argv cwd user channel
    exit_code signal reason attempts limits usage processes memory_bytes descendants deadline
    milestone created_at started_at ended_at
"""


def test_spawn_prints_the_id_alone(daemon: World) -> None:
    done = daemon.sfactl("spawn", "--", "sleep", "60")
    assert done.stdout.strip() in {run["id"] for run in daemon.json("list")["runs"]}
    assert done.stderr == ""


@pytest.mark.alone
def test_a_run_has_every_field_of_the_contract(daemon: World) -> None:
    run = daemon.json("spawn", "--type", "qa", "--label", "team=x", "--", "sleep", "60")
    for found in (run, daemon.json("info", run["id"]), *daemon.json("list")["runs"]):
        assert set(found) >= set(CONTRACT.split())
        assert msgspec.convert(found, RunInfo).type == "qa"
        assert found["usage"]["turns"] is None


def test_what_could_not_start_says_so(daemon: World) -> None:
    done = daemon.sfactl("spawn", "--", "no-such-command-anywhere", code=127)
    assert "no-such-command-anywhere" in done.stderr


@pytest.mark.alone
def test_the_table_and_the_tree(daemon: World) -> None:
    parent = daemon.spawn(
        "--name", "boss", "--", "sh", "-c", "$SFACTL run --name clerk -- sleep 60"
    )
    wait_until(lambda: len(daemon.json("list")["runs"]) == 2, "the child has started")
    header, *rows = daemon.sfactl("ps").stdout.splitlines()
    assert header.split()[:3] == ["ID", "NAME", "STATUS"]
    assert [row.split()[1] for row in rows] == ["boss", "clerk"]
    top, below = daemon.sfactl("tree", parent).stdout.splitlines()
    assert top.startswith(f"{parent}  boss  running  depth 0")
    assert below.startswith("└─ ")
    (tree,) = daemon.json("tree")["tree"]
    assert (tree["run"]["name"], tree["children"][0]["run"]["name"]) == ("boss", "clerk")


@pytest.mark.alone
def test_lists_are_filtered(daemon: World) -> None:
    daemon.sfactl("run", "-q", "--name", "done", "--label", "k=1", "--", "true")
    daemon.spawn("--name", "live", "--label", "k=2", "--", "sleep", "60")

    def names(*words: str) -> list[str]:
        return [run["name"] for run in daemon.json("list", *words)["runs"]]

    assert names() == ["done", "live"]
    assert names("--status", "running") == ["live"]
    assert names("--name", "done") == ["done"]
    assert names("--name", "done", "--name", "live", "--since", "1h") == ["done", "live"]
    assert names("--label", "k=2") == ["live"]
    assert names("--limit-rows", "0") == ["live"]
    assert names("--since", "1h") == ["done", "live"]
    assert names("--since", "2999-01-01T00:00:00Z") == []
    assert daemon.json("list", "--live", "--status", "running")["runs"][0]["processes"] == 1


@pytest.mark.alone
def test_a_live_run_is_listed_however_many_newer_ones_have_ended(daemon: World) -> None:
    daemon.spawn("--name", "old", "--", "sleep", "60")
    for name in ("first", "second", "third"):
        daemon.sfactl("run", "-q", "--name", name, "--", "true")
    listed = daemon.sfactl("list", "--limit-rows", "1").stdout.splitlines()[1:]
    assert [line.split()[1] for line in listed] == ["old", "third"]


@pytest.mark.alone
def test_a_unique_prefix_will_do_and_an_unknown_id_is_66(daemon: World) -> None:
    run = daemon.spawn("--", "sleep", "60")
    assert daemon.json("info", run[0])["id"] == run
    for verb in (
        "info",
        "why",
        "logs",
        "result",
        "wait",
        "pause",
        "resume",
        "stop",
        "approve",
        "deny",
    ):
        assert "zz9" in daemon.sfactl(verb, "zz9", code=66).stderr


@pytest.mark.alone
def test_stop_by_id_name_label_and_all(daemon: World) -> None:
    by_id = daemon.spawn("--", "sleep", "60")
    by_name = daemon.spawn("--name", "n", "--", "sleep", "60")
    by_label = daemon.spawn("--label", "k=v", "--", "sleep", "60")
    other = daemon.spawn("--", "sleep", "60")
    found = daemon.json("stop", by_id, "--name", "n", "--label", "k=v")
    assert set(found) == {"stopped", "survivors", "elapsed_s", "ended", "unreached"}
    assert daemon.json("stop", by_id)["ended"] == [by_id]
    assert daemon.status(other) == "running" or set(found["stopped"]) == {by_id}
    daemon.sfactl("stop", by_name, by_label, code=None)
    assert daemon.json("stop", "--all")["stopped"] == [other]
    assert daemon.sfactl("stop", "--all").stderr == "nothing to stop\n"
    daemon.sfactl("stop", code=2)


def test_stop_returns_when_everything_is_gone(daemon: World) -> None:
    stubborn = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 60' & sleep 60; sleep 60"
    run = daemon.spawn("--grace", "0.2", "--", "sh", "-c", stubborn)
    pid = daemon.json("info", run)["pid"]
    daemon.sfactl("stop", run, "--signal", "TERM", "--grace", "200ms")
    assert not os.path.exists(f"/proc/{pid}")
    assert daemon.status(run) == "cancelled"


def test_wait_prints_each_and_exits_with_the_first_that_did_not_complete(daemon: World) -> None:
    good, bad = daemon.spawn("--", "true"), daemon.spawn("--", "sh", "-c", "exit 9")
    lines = daemon.sfactl("wait", good, bad, code=9).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [good, bad]
    assert daemon.json("wait", good)["status"] == "completed"
    long = daemon.spawn("--", "sleep", "60")
    assert "not over" in daemon.sfactl("wait", "--timeout", "50ms", long, code=75).stderr


@variant
@pytest.mark.alone
def test_waiting_goes_on_across_a_death_of_the_daemon(start: Start, daemon: World) -> None:
    run = daemon.spawn("--", "sleep", "60")
    waiting = start("wait", run)
    wait_until(lambda: daemon.json("status")["connections"] >= 2, "it waits")
    daemon.kill()
    daemon.begin()
    daemon.sfactl("stop", run)
    assert waiting.wait(PATIENCE) in (70, 143), "lost, by a daemon that adopts nothing"


def test_logs_are_raw_and_selected(daemon: World) -> None:
    run = daemon.json("run", "--", "sh", "-c", "printf '1\\n2\\n3\\n\\033[1m'; echo bad >&2")["id"]
    done = daemon.sfactl("logs", run)
    assert (done.stdout, done.stderr) == ("1\n2\n3\n\033[1m", "bad\n")
    assert daemon.sfactl("logs", "--stderr", run).stdout == "bad\n"
    assert daemon.sfactl("logs", "--stdout", "--tail", "2", run).stdout == "3\n\033[1m"
    assert daemon.sfactl("logs", "--stdout", "--tail", "5B", run).stdout == "\n\033[1m"
    assert daemon.sfactl("logs", "--tail", "lots", run, code=2).stdout == ""
    lines = daemon.sfactl("logs", "--json", run).stdout.splitlines()
    said = [msgspec.json.decode(line) for line in lines]
    assert {"stream": "stderr", "text": "bad"} in said
    assert {"stream": "stdout", "text": "\033[1m"} in said


@pytest.mark.parametrize(
    "option", [(), ("--json",), ("--timestamps",), ("--tail", "2"), ("--raw",)]
)
def test_a_run_that_never_started_has_no_logs(daemon: World, option: tuple[str, ...]) -> None:
    first = daemon.json("spawn", "--", "sleep", "600")["id"]
    run = daemon.json("spawn", "--after", first, "--", "true")["id"]
    daemon.sfactl("stop", run, first)
    said = daemon.sfactl("logs", *option, run, code=1).stderr
    assert said == (
        f"sfactl: run {run} has never started, so it has no output; sfactl why {run} says why\n"
    )


def test_several_may_follow_from_the_start_to_the_end(start: Start, daemon: World) -> None:
    run = daemon.spawn("--stdin", "--", "sh", "-c", "echo begun; read word; echo $word")
    readers = [start("logs", "-f", run) for _ in range(3)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"begun\n"
    daemon.sfactl("send", run, "the", "word")
    for reader in readers:
        assert reader.communicate(timeout=PATIENCE)[0] == b"the word\n"
        assert reader.returncode == 0


def test_sending_from_stdin_to_its_end(daemon: World) -> None:
    run = daemon.spawn("--stdin", "--", "sort")
    daemon.sfactl("send", "--eof", run, stdin="b\na\n")
    daemon.sfactl("wait", run)
    assert daemon.sfactl("logs", run).stdout == "a\nb\n"


def test_sending_to_who_does_not_read(daemon: World) -> None:
    run = daemon.spawn("--", "sleep", "60")
    assert "--stdin" in daemon.sfactl("send", run, "x", code=1).stderr
    assert "no run has" in daemon.sfactl("send", "no-such", stdin="", code=66).stderr


def test_a_result_is_safe_for_a_model(daemon: World) -> None:
    run = daemon.json("run", "--", "printf", "a <b> \\033[31mred")["id"]
    text = daemon.sfactl("result", run).stdout
    assert "&lt;b&gt;" in text
    assert "\033" not in text
    assert daemon.json("result", run)["truncated"] is False


def test_stop_says_which_runs_had_ended(daemon: World) -> None:
    ended = daemon.json("run", "--", "true")["id"]
    assert daemon.sfactl("stop", ended).stderr == f"ended before: {ended}\n"
    live = daemon.spawn("--", "sleep", "60")
    told = daemon.sfactl("stop", ended, live).stderr
    assert re.fullmatch(rf"ended before: {ended}\nstopped: {live} \([0-9.]+m?s\)\n", told), told


def test_pause_and_resume(daemon: World) -> None:
    run = daemon.spawn("--", "sleep", "60")
    assert daemon.json("pause", run)["status"] == "paused"
    assert daemon.json("resume", run)["status"] == "running"
    daemon.sfactl("stop", run)
    daemon.sfactl("pause", run, code=1)


def test_why(daemon: World) -> None:
    run = daemon.spawn("--timeout", "77", "--", "sleep", "60")
    assert "time 77s → terminate (from --timeout)" in daemon.sfactl("why", run).stdout
    daemon.sfactl("stop", run)
    assert "cancelled" in daemon.json("why", run)["why"]


def test_what_a_run_has_unlike_this_shell_is_shown(daemon: World) -> None:
    run = daemon.spawn("--", "sleep", "1000")
    assert "unlike_here" not in daemon.json("info", run)
    other = ["nice", "-n", "3", "prlimit", "--nofile=300:400", *SFACTL, "info", run]
    # Python reads the path of an editable install in the encoding of the locale
    locale = "POSIX" if __file__.isascii() else "C.utf8"
    said = subprocess.run(
        other, env=daemon.env | {"LC_ALL": locale}, capture_output=True, text=True, check=True
    ).stdout
    unlike = [line.split(None, 2)[2] for line in said.splitlines() if line.startswith("unlike")]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert f"nice {nice}, and here {min(nice + 3, 19)}" in unlike
    assert any(line.endswith(", and here 300:400") for line in unlike)
    assert any(line.endswith(f", and here {locale}") for line in unlike)
    daemon.sfactl("stop", run)
    assert "unlike" not in daemon.sfactl("info", run).stdout


def test_the_daemon_shows_itself(daemon: World) -> None:
    assert daemon.json("status")["socket"] == str(daemon.socket)
    assert "containment" in daemon.sfactl("status").stdout
    assert {"key", "value", "source"} <= set(daemon.json("config")["settings"][0])
    assert daemon.sfactl("config").stdout.startswith("KEY")
    report = daemon.json("doctor", code=None)
    assert report["containment"] in ("cgroup", "tags")
    assert report["findings"][0]["verdict"] == "ok"
    assert set(report["findings"][0]) == {"name", "verdict", "detail", "fix"}
    elsewhere = json.loads(
        daemon.sfactl("doctor", "--json", code=None, SFAD_STATE_DIR="/nonexistent").stdout
    )["findings"]
    (state,) = [each["detail"] for each in elsewhere if each["name"] == "state directory"]
    assert state.startswith(daemon.json("status")["state_dir"]), (
        "the directory of the daemon that answers"
    )


HOLDS = """
import fcntl, os, signal, sys
with open(sys.argv[1], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print(os.getpid(), file=lock, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_doctor_says_that_the_daemon_which_does_not_answer_is_stopped(
    world: World, tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path / "lock"]) as holder:
        try:
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
            said = world.sfactl(
                "doctor", "--socket", str(tmp_path / "none"), code=1, SFAD_STATE_DIR=str(tmp_path)
            ).stdout
            assert f"though pid {holder.pid} holds the state directory (stopped)" in said
        finally:
            holder.kill()


def test_socket_is_chosen_by_flag_before_variables(daemon: World) -> None:
    assert (
        daemon.sfactl("list", "--socket", str(daemon.socket), SFA_SOCKET="/nonexistent").returncode
        == 0
    )
    assert "/nonexistent" in daemon.sfactl("list", code=69, SFA_SOCKET="/nonexistent").stderr


@pytest.mark.parametrize("words", [("wait",), ("logs", "-f")])
def test_ctrl_c_is_130_without_a_traceback(
    start: Start, daemon: World, words: tuple[str, ...]
) -> None:
    run = daemon.spawn("--", "sleep", "60")
    process = start(*words, run)
    wait_until(lambda: daemon.json("status")["connections"] >= 2, "it is connected and waits")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (130, b"")


def test_a_reader_that_goes_away_is_no_error(daemon: World) -> None:
    script = "$SFACTL config | head -n 1; $SFACTL --help | head -n 1"
    done = subprocess.run(
        ["sh", "-c", script], env=daemon.env, capture_output=True, timeout=PATIENCE, check=True
    )
    assert done.stderr == b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(world: World, shell: str) -> None:
    assert "sfactl" in world.sfactl("completion", shell).stdout


def test_completion_offers_verbs_and_options(world: World) -> None:
    world.env |= {
        "_SFACTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "sfactl spawn --max",
        "COMP_CWORD": "2",
    }
    assert world.sfactl().stdout.split() == ["--max-depth", "--max-descendants"]


def test_help_lists_verbs_and_exit_codes(world: World) -> None:
    text = world.sfactl("--help").stdout
    for word in ("spawn", "doctor", "demo", "reserve", "recommend", "126", "the run timed out"):
        assert word in text
    assert "--max-depth" in world.sfactl("spawn", "--help").stdout


def test_help_has_headings(world: World) -> None:
    verbs_by_heading = by_heading(world.sfactl("--help").stdout)
    headings = ["Options", "Start", "Look", "Steer", "Bring home", "Money", "Set up"]
    assert list(verbs_by_heading) == headings
    assert list(verbs_by_heading["Bring home"]) == ["diff", "land", "fetch"]
    assert (verbs_by_heading["Start"][0], verbs_by_heading["Steer"][0]) == ("run", "stop")
    assert {"completion", "help", "hooks"} <= {*verbs_by_heading["Set up"]}
    options = by_heading(world.sfactl("run", "--help").stdout)
    assert [*options][:2] == ["Arguments", "Options"]
    assert options["Limits"][:2] == ["--timeout", "--limit"]
    assert "--wait" not in options["Options"]
    assert [*by_heading(world.sfactl("list", "--help").stdout)] == ["Options"]


def by_heading(text: str) -> dict[str, list[str]]:
    """Return the first word of each line of a help text by its heading."""
    found: dict[str, list[str]] = {}
    for paragraph in text.split("\n\n"):
        heading, *lines = paragraph.splitlines()
        if heading.endswith(":") and not heading.startswith(" "):
            found[heading[:-1]] = [line.split()[0] for line in lines if line[2] != " "]
    return found


def test_the_demo_leaves_nothing(world: World) -> None:
    done = world.sfactl("demo", TMPDIR=str(world.directory))
    for word in (
        "summariser",
        "refused",
        "level-3",
        "gone",
        "call 4: HTTP 400",
        "has answered 3 calls, for 0.045 USD",
    ):
        assert word in done.stdout
    assert [path.name for path in world.directory.iterdir()] == ["sfad.toml"]
