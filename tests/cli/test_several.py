"""Handles of runs, and commands about several runs."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from sfactl import verbs
from sfactl.connecting.connection import Client, DaemonError
from sfactl.options import completion as shell_completion
from sfactl.output import own_user
from sfad.protocol import messages as m
from sfad.protocol.types import After, Claim, ErrorCode, Status
from tests.harness import ended, spawn, started, stopped, wait_until
from tests.tiers import variant

from .conftest import World

Start = Callable[..., subprocess.Popen[bytes]]
SLEEP = ["sleep", "100"]


@pytest.fixture
def client(daemon: World) -> Iterator[Client]:
    with Client(daemon.socket) as client:
        yield client


def meant(client: Client, handle: str) -> str:
    """Return the id of the run that a handle names."""
    return client.call(m.Info(id=0, run=handle), m.RunReply).run.id


def failure(client: Client, handle: str) -> DaemonError:
    with pytest.raises(DaemonError) as caught:
        meant(client, handle)
    return caught.value


def test_a_name_stands_for_the_live_run_else_for_the_newest(client: Client) -> None:
    live = started(client, SLEEP, name="worker").id
    newer = ended(client, started(client, ["true"], name="worker").id).id
    assert meant(client, "worker") == live
    stopped(client, live)
    assert meant(client, "worker") == newer
    ids = [started(client, SLEEP, name="worker").id for _ in range(2)]
    error = failure(client, "worker")
    assert error.error is ErrorCode.AMBIGUOUS_RUN
    assert f"2 live runs ({', '.join(ids)})" in str(error)


def test_an_id_comes_before_a_name_and_a_name_before_a_prefix(client: Client) -> None:
    first = started(client, SLEEP, name="first").id
    started(client, SLEEP, name=first)
    assert meant(client, first) == first
    named_like_a_prefix = started(client, SLEEP, name=first[0]).id
    assert meant(client, first[0]) == named_like_a_prefix
    assert failure(client, "nobody").error is ErrorCode.NO_SUCH_RUN


def refused(client: Client, name: str) -> str:
    """Have the start of a run of this name refused as a loop; return the id of its row."""
    reply = spawn(client, ["true"], name=name, claim=Claim(names=[name], depth=1))
    assert isinstance(reply, m.Refused)
    assert reply.run is not None
    return reply.run


def test_a_refused_start_does_not_take_the_name_of_a_run(daemon: World, client: Client) -> None:
    row = refused(client, "planner")
    assert meant(client, row) == row
    alone = failure(client, "planner")
    assert alone.error is ErrorCode.NO_SUCH_RUN
    assert str(alone) == (
        f"no run named 'planner' has started; its last start was refused: see 'sfactl why {row}'"
    )
    run = ended(client, started(client, ["echo", "the plan"], name="planner").id).id
    newest = [refused(client, "planner") for _ in range(3)][-1]
    assert meant(client, "planner") == run
    for words in (["logs", "planner"], ["result", "--plain", "planner"]):
        assert daemon.sfactl(*words).stdout == "the plan\n"
    assert run in daemon.sfactl("wait", "planner").stdout
    again = daemon.sfactl("rerun", "planner").stdout.strip()
    ended(client, again)
    assert daemon.sfactl("logs", again).stdout == "the plan\n"
    assert meant(client, "planner") == again
    after = daemon.sfactl("run", "--after", "planner:ok", "--", "echo", "after")
    assert after.stdout == "after\n"
    why = daemon.sfactl("why", newest).stdout
    assert "was refused" in why


def test_a_name_stands_for_a_run_that_started(client: Client) -> None:
    ran = ended(client, started(client, ["true"], name="worker").id).id
    blocker = started(client, SLEEP, name="blocker").id
    waits = spawn(client, ["true"], name="worker", after=[After(run=blocker)])
    assert isinstance(waits, m.RunReply)
    assert meant(client, "worker") == waits.run.id, "a queued run"
    stopped(client, waits.run.id)
    assert meant(client, "worker") == ran
    only = spawn(client, ["true"], name="never", after=[After(run=blocker)])
    assert isinstance(only, m.RunReply)
    stopped(client, only.run.id)
    assert meant(client, "never") == only.run.id, "no other has the name"
    stopped(client, blocker)


def test_a_name_means_the_same_without_a_daemon(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.served(), Client(world.socket) as client:
        run = ended(client, started(client, ["true"], name="planner").id).id
        refused(client, "planner")
    assert msgspec.json.decode(world.sfactl("info", "--json", "planner").stdout)["id"] == run


def test_completion_describes_the_run_that_a_name_means(daemon: World, client: Client) -> None:
    live = started(client, SLEEP, name="tab-planner").id
    ended(client, started(client, ["true"], name="tab-planner").id)
    refused(client, "tab-planner")
    refused(client, "tab-refused")
    words = shell_completion.candidates("run", "tab-", str(daemon.socket))
    assert words == [("tab-planner", f"{live}, running")]
    stopped(client, live)


def test_an_agent_resolves_within_what_it_may_see(daemon: World, client: Client) -> None:
    started(client, SLEEP, name="stranger")
    script = (
        "id=$($SFACTL spawn --name mine -- sleep 60); for w in stranger mine; "
        "do $SFACTL info $w >/dev/null 2>&1; echo $?; done"
    )
    assert (
        daemon.sfactl("run", "-q", "--name", "outer", "--", "sh", "-c", script).stdout == "66\n0\n"
    )
    # its parent of this name has started, and is not its to see
    script = "$SFACTL run --name above -- true; $SFACTL info above"
    inner = f"$SFACTL run -q --name inner -- sh -c '{script}'"
    done = daemon.sfactl("run", "-q", "--name", "above", "--", "sh", "-c", inner, code=66)
    inner_id = daemon.json("info", "inner")["id"]
    assert f"no run named 'above' has started within run {inner_id};" in done.stderr


def test_each_failure_is_named_and_the_rest_is_done(daemon: World, client: Client) -> None:
    one, two = (started(client, SLEEP, name=name).id for name in ("one", "two"))
    done = daemon.sfactl("pause", "one", "no-such", two, code=66)
    assert done.stderr.splitlines() == [
        f"{one} is paused",
        "sfactl: no run has the id or the name 'no-such'; 'sfactl list' shows them",
        f"{two} is paused"
    ]  # fmt: skip
    lines = daemon.sfactl("info", "--json", "two", "no-such", "one", code=66).stdout.splitlines()
    assert [msgspec.json.decode(line)["id"] for line in lines] == [two, one]
    assert (
        daemon.sfactl("stop", "one", "no-such", "two", code=66)
        .stderr.splitlines()[1]
        .startswith("stopped: ")
    )
    assert [meant_status(client, run) for run in (one, two)] == ["cancelled", "cancelled"]
    worst = daemon.sfactl("resume", "one", "no-such", code=66)
    assert f"run {one} has ended" in worst.stderr


def test_labels_of_one_key_mean_either(daemon: World, client: Client) -> None:
    runs = {value: started(client, SLEEP, labels={"job": value, "team": "x"}).id for value in "abc"}
    daemon.sfactl("pause", "--label", "job=a", "--label", "job=b", "--label", "team=x")
    assert [meant_status(client, runs[value]) for value in "abc"] == ["paused", "paused", "running"]
    done = daemon.sfactl("resume", "--all")
    assert done.stderr.splitlines() == [f"{runs[value]} is running" for value in "ab"]
    assert daemon.sfactl("resume", "--all").stderr == "no run matches\n"
    assert (
        daemon.sfactl("pause", "--label", "job=b", "--label", "team=y").stderr == "no run matches\n"
    )
    for usage in (["pause"], ["pause", "--all", "--name", "n"]):
        daemon.sfactl(*usage, code=2)
    found = daemon.json("stop", "--label", "job=a", "--label", "job=c")
    assert set(found["stopped"]) == {runs["a"], runs["c"]}
    stopped(client, runs["b"])
    assert daemon.sfactl("wait", runs["a"], "no-such", code=66).stdout.startswith(runs["a"])


def meant_status(client: Client, run: str) -> str:
    return client.call(m.Info(id=0, run=run), m.RunReply).run.status.value


def test_pause_of_all_freezes_a_tree_once(daemon: World, client: Client) -> None:
    boss = daemon.spawn("--name", "boss", "--", "sh", "-c", "$SFACTL run --name clerk -- sleep 60")
    running = m.List(id=0, name="clerk", status=[Status.RUNNING])
    below = wait_until(lambda: client.call(running, m.RunList).runs, "the child has started")
    daemon.sfactl("pause", "--all")
    daemon.sfactl("resume", boss)
    assert meant_status(client, below[0].id) == "running", (
        "it was frozen with its parent, not on its own"
    )


def test_limits_of_a_live_run(daemon: World, client: Client) -> None:
    run = started(client, SLEEP, name="bounded").id
    (time,) = [
        limit
        for limit in daemon.json("limit", "bounded", "time=30m", "turns=7:warn")["limits"]
        if limit["kind"] == "time"
    ]
    assert (time["threshold"], time["source"]) == (1800, f"sfactl limit time by user {own_user()}")
    assert "limits.max_time" in daemon.sfactl("limit", run, "time=2h", code=2).stderr
    assert "say which limits" in daemon.sfactl("limit", run, code=2).stderr
    done = daemon.sfactl("limit", run, "no-such", "time=1s", code=66)
    assert "limit time" in done.stderr
    assert daemon.sfactl("wait", run, code=3).stdout.startswith(run)
    assert "has ended" in daemon.sfactl("limit", run, "turns=9", code=1).stderr


def test_a_run_may_only_lower_limits(daemon: World) -> None:
    script = (
        '$SFACTL limit "$SFA_RUN_ID" turns=26; echo $?; $SFACTL limit "$SFA_RUN_ID" turns=5 '
        "2>/dev/null; echo $?"
    )
    inside = daemon.sfactl("run", "-q", "--", "sh", "-c", script)
    assert inside.stdout == "77\n0\n"
    assert "may only lower limits" in inside.stderr


def test_logs_of_several_runs(daemon: World, client: Client) -> None:
    one = started(
        client, ["sh", "-c", "echo one; echo bad >&2"], name="one", labels={"logs": "1"}
    ).id
    two = started(
        client, ["sh", "-c", "printf 'two\\nrest'"], name="second", labels={"logs": "2"}
    ).id
    for run in (one, two):
        ended(client, run)
    done = daemon.sfactl("logs", "--label", "logs=1", "--label", "logs=2")
    first, second = f"{one} one", f"{two} second"
    first = first.ljust(len(second))
    assert done.stdout == f"{first} | one\n{second} | two\n{second} | rest\n"
    assert done.stderr == f"{first} | bad\n"
    lines = daemon.sfactl("logs", "--json", one, "no-such", two, code=66).stdout.splitlines()
    assert msgspec.json.decode(lines[0]) == {"run": one, "stream": "stdout", "text": "one"}
    stamped = daemon.sfactl("logs", "--timestamps", one)
    assert stamped.stdout.startswith(" 20")
    assert "≤" not in stamped.stderr
    seen = msgspec.json.decode(
        daemon.sfactl("logs", "--timestamps", "--json", two).stdout.splitlines()[0]
    )
    assert (seen["time"], seen["text"]) == (seen["not_after"], "two")


@pytest.mark.alone
def test_times_of_lines_outlive_the_run_and_the_daemon(daemon: World, tmp_path: Path) -> None:
    script = (
        "for word in two three; do echo $word; until test -e after-$word; do sleep 0.05; done; "
        "done; echo four; sleep 300"
    )
    run = daemon.spawn(
        "--timeout", "5m", "--cwd", str(tmp_path), "--", "sh", "-c", f"echo one; {script}"
    )
    for word, following in (("two", "three"), ("three", "four")):
        age_output(daemon, run)
        (tmp_path / f"after-{word}").touch()
        wait_until(
            lambda word=following: word in daemon.sfactl("logs", run).stdout,  # type: ignore[misc]
            f"it writes {following}",
        )
    daemon.kill()
    daemon.begin()
    age_output(daemon, run)
    daemon.sfactl("stop", run)
    lines = [
        msgspec.json.decode(line)
        for line in daemon.sfactl("logs", "-t", "--json", run).stdout.splitlines()
    ]
    assert [line["text"] for line in lines] == ["one", "two", "three", "four"]
    first, again, *others = times = [line["not_after"] for line in lines]
    assert (first, times) == (again, sorted(times))
    assert len({*times}) == 3
    # nothing tells the second daemon whether the last line was written while it was away
    assert [line["time"] for line in lines] == [first, first, others[0], None]
    daemon.end()
    assert [line[:1] for line in daemon.sfactl("logs", "-t", run).stdout.splitlines()] == [
        " ",
        " ",
        " ",
        "≤",
    ]
    daemon.begin()


def age_output(daemon: World, run: str) -> None:
    """Wait until the file system's time is more than a second after the last write to the run's
    output."""
    newest = max(path.stat().st_mtime for path in (daemon.state / "output").glob(f"{run}.*"))
    wait_until(lambda: time.time() > newest + 1.1, "a second has passed")


def test_following_several_runs_to_their_end_and_to_ctrl_c(client: Client, start: Start) -> None:
    runs = [
        started(
            client, ["sh", "-c", f"echo {n}; read line; echo end {n}"], name=f"f{n}", stdin="pipe"
        ).id
        for n in (1, 2)
    ]
    following = start("logs", "-f", "-t", "--json", *runs)
    assert following.stdout is not None
    first = [msgspec.json.decode(following.stdout.readline()) for _ in runs]
    assert {line["text"] for line in first} == {"1", "2"}
    for run in runs:
        client.call(m.Send(id=0, run=run, data=b"\n"), m.Done)
    rest = [msgspec.json.decode(line) for line in following.stdout]
    assert following.wait() == 0
    assert {line["text"] for line in rest} == {"end 1", "end 2"}
    assert all(line["time"] == line["not_after"] for line in rest), "they were seen as they came"
    again = start(
        "logs", "-f", "--json", started(client, ["sh", "-c", "echo x; sleep 60"]).id, runs[0]
    )
    assert again.stdout is not None
    again.stdout.readline()
    again.send_signal(2)
    assert again.wait() == 130


def test_reload_says_what_changed_or_why_nothing_did(daemon: World) -> None:
    daemon.config.write_text(
        '[limits]\nmax_time = "2h"\n[log]\nlevel = "debug"\n[budgets.users.ann]\ndaily_usd = 5\n'
    )
    done = daemon.sfactl("reload")
    assert done.stdout.splitlines() == [
        f"limits.max_time: 3600.0 → 7200.0 ({daemon.config})",
        f'log.level: "info" → "debug" ({daemon.config}; waits for the next start or re-execution)',
        f"budgets.users.ann.daily_usd: null → 5.0 ({daemon.config})",
    ]
    daemon.config.write_text("[limits]\nmax_tim = 1\n")
    broken = daemon.sfactl("reload", code=2)
    assert f"nothing was changed: {daemon.config}: limits.max_tim: unknown key" in broken.stderr
    assert daemon.sfactl("run", "-q", "--", "sh", "-c", "$SFACTL reload; echo $?").stdout == "77\n"
    daemon.config.write_text("")
    changed = {
        change["key"]: (change["old"], change["new"], change["source"])
        for change in daemon.json("reload")["changed"]
    }
    assert changed == {
        "limits.max_time": (7200.0, 3600.0, "built-in"),
        "budgets.users.ann.daily_usd": (5.0, None, "removed"),
    }


@variant
@pytest.mark.alone
def test_a_death_of_the_daemon_undoes_neither_prune_nor_limit(daemon: World) -> None:
    with Client(daemon.socket) as client:
        gone = [
            ended(
                client,
                started(client, ["sh", "-c", "echo $0 | head -c 9000", "x" * 9000], key=f"k{n}").id,
            ).id
            for n in "ab"
        ]
        kept = ended(client, started(client, ["true"]).id).id
        live = started(client, SLEEP).id
        daemon.sfactl("prune", code=2)
        assert daemon.json("prune", "--older-than", "1h")["runs"] == 0
        counted = daemon.json("prune", "--keep", "1", "--dry-run")
        assert (counted["trees"], counted["runs"], counted["files"]) == (2, 2, 4)
        assert counted["output_bytes"] >= 9000
        assert daemon.json("prune", "--keep", "1") == counted | {"dry_run": False}
        left = [run.id for run in client.call(m.List(id=0), m.RunList).runs]
        assert left == [kept, live]
        assert not [
            path
            for path in (daemon.state / "output").iterdir()
            if path.name.partition(".")[0] in gone
        ]
        inside = daemon.sfactl("run", "-q", "--", "sh", "-c", "$SFACTL prune --keep 0; echo $?")
        assert inside.stdout == "77\n"
    daemon.sfactl("limit", live, "time=20m", "cost=3:pause")
    deadline = daemon.json("info", live)["deadline"]
    daemon.kill()
    daemon.begin()
    assert daemon.sfactl("info", *gone, code=66).stdout == ""
    found = daemon.json("info", live)
    assert (found["status"], found["deadline"][:16]) == ("running", deadline[:16])
    assert {limit["kind"]: limit["threshold"] for limit in found["limits"]}["cost"] == 3
    daemon.sfactl("stop", "--all")


def completed(daemon: World, line: str) -> list[str]:
    """Return the words that a shell offers for the last word of a line."""
    words = line.split(" ")
    done = daemon.sfactl(
        _SFACTL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_completion(daemon: World, client: Client) -> None:
    run = started(client, SLEEP, name="completeme", labels={"night": "yes"}, run_type="odd").id
    assert completed(daemon, "sfactl pause compl") == ["completeme"]
    assert run in completed(daemon, f"sfactl stop {run[0]}")
    assert completed(daemon, "sfactl list --label nig") == ["night=yes"]
    assert completed(daemon, "sfactl run --type o") == ["odd"]
    assert completed(daemon, "sfactl ps --status comp") == ["completed"]
    stopped(client, run)
    assert completed(daemon, "sfactl pause compl") == []


def test_completion_is_silent_without_a_daemon(world: World) -> None:
    assert completed(world, "sfactl stop a") == []
    assert completed(world, "sfactl run --type q") == ["qa"]
    assert completed(world, "sfactl run --meter co") == ["codex", "copilot"]


KIND = re.compile(r'\b(?:words=|completing\()"([^"]+)"')


def test_every_kind_of_word_is_known() -> None:
    sources = [
        path.read_text() for path in Path(shell_completion.__file__).parents[1].rglob("*.py")
    ]
    declared = {kind for text in sources for kind in KIND.findall(text)}
    assert declared == set(shell_completion.CANDIDATES)


def test_help_needs_no_daemon(world: World) -> None:
    assert world.sfactl("help").stdout == world.sfactl("--help").stdout
    assert world.sfactl("help", "ps").stdout == world.sfactl("list", "--help").stdout
    for group in verbs.MEMBERS:
        assert world.sfactl("help", group).stdout == world.sfactl(group, "--help").stdout
    assert "unknown verb 'bogus'" in world.sfactl("help", "bogus", code=2).stderr


def test_a_wrong_command_line_is_told_in_the_form_of_every_error(world: World) -> None:
    for words, what in (
        (["run", "-p", "hi"], "no such option: -p\nTry 'sfactl run --help'."),
        (["run", "--timeout"], "option '--timeout' requires an argument\nTry 'sfactl run --help'."),
        (["info"], "missing argument 'RUN'\nTry 'sfactl info --help'."),
        (["kill", "a1"], "no such command 'kill'. Did you mean 'stop'?\nTry 'sfactl --help'."),
        (["help", "kill"], "unknown verb 'kill'. Did you mean 'stop'?\nTry 'sfactl help --help'."),
        (
            ["session", "kill"],
            "no such command 'kill'. Did you mean 'session stop'?\nTry 'sfactl session --help'.",
        ),
        (
            ["help", "session", "lst"],
            "unknown verb 'session lst'. Did you mean 'session list'?\nTry 'sfactl help --help'.",
        ),
        (
            ["run", "--timeuot", "5"],
            "no such option: --timeuot. Did you mean '--timeout'?\nTry 'sfactl run --help'.",
        ),
        (["bogus"], "no such command 'bogus'. Did you mean 'logs'?\nTry 'sfactl --help'."),
        (
            ["logs"],
            "say which runs: ids or names, --all, --name or --label\nTry 'sfactl logs --help'.",
        ),
    ):
        assert world.sfactl(*words, code=2).stderr == f"sfactl: {what}\n"


def test_equal_runs_are_started_with_a_number_each(daemon: World, client: Client) -> None:
    done = daemon.sfactl("spawn", "--count", "3", "--", "sh", "-c", "echo $SFA_INDEX")
    assert done.returncode == 0, done.stderr
    runs = done.stdout.split()
    assert len(set(runs)) == 3
    for run in runs:
        ended(client, run)
    assert [daemon.sfactl("logs", run).stdout for run in runs] == ["0\n", "1\n", "2\n"]
    for words, said in ((["0"], "from 1 to"), (["2", "--wait"], "exclude each other")):
        wrong = daemon.sfactl("spawn", "--count", *words, "--", "true", code=2)
        assert said in wrong.stderr, wrong
