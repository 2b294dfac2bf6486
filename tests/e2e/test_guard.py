"""What may start, asked by real agents from wherever an agent can get to."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from sfad.protocol import messages as m
from sfad.protocol.types import Event
from tests.conftest import Start
from tests.core.transcript import bound
from tests.harness import Daemon, agent, ended, started, wait_until

from .agents import info, watched

DEEPER = """
level = int(sys.argv[1])
done = sfactl("run", "--name", f"level{level + 1}", "--", sys.executable, __file__, str(level + 1))
print(f"level {level}: exit {done.returncode}: {done.stderr}")
print(done.stdout, end="")
sys.exit(done.returncode)
"""


def test_five_levels_run_and_the_sixth_is_refused(
    tmp_path: Path, share: Start, containment: str
) -> None:
    daemon = share(mode=containment)
    done = daemon.sfactl("run", "--name", "level1", "--", *agent(tmp_path, "deeper", DEEPER), "1")
    assert done.returncode == 1, done.stderr
    assert (
        "'level6' was not started: "
        "the chain of agents calling agents is already 5 deep and 5 is the limit"
    ) in done.stdout
    assert "max_depth, set by default" in done.stdout
    listed = json.loads(daemon.sfactl("list", "--json").stdout)["runs"]
    assert [
        (run["name"], run["depth"], run["status"]) for run in listed if run["name"] == "level6"
    ] == [("level6", 5, "rejected_depth")]
    assert sorted(run["depth"] for run in listed if run["status"] == "failed") == [0, 1, 2, 3, 4]


def test_depth_says_which_flag_set_it(tmp_path: Path, daemon: Daemon) -> None:
    done = daemon.sfactl(
        "run", "--name", "level1", "--max-depth", "2", "--", *agent(tmp_path, "deeper", DEEPER), "1"
    )
    assert done.returncode == 1
    assert "already 2 deep and 2 is the limit (max_depth, set by --max-depth)" in done.stdout


LOOPING = """
me = sys.argv[1]
if me == "a":
    done = sfactl("run", "--name", "b", "--", sys.executable, __file__, "b", str(os.getpid()))
    print(done.stdout, done.stderr, sep="")
    sys.exit(done.returncode)
again = ["run", "--name", "a", "--", sys.executable, __file__, "a"]
bare = {"PATH": os.environ["PATH"], "SFAD_SOCKET": os.environ["SFA_SOCKET"]}

def orphan():
    # a process that has a session of its own, and neither a parent in this run nor its environment
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while os.getppid() == int(sys.argv[2]):
            time.sleep(0.01)
        done = sfactl(*again, env=bare)
        os.write(write, repr((done.returncode, done.stderr)).encode())
        os._exit(0)
    os.wait()
    os.close(write)
    code, text = eval(b"".join(iter(lambda: os.read(read, 4096), b"")))
    return subprocess.CompletedProcess(again, code, "", text)

for ask in (
    lambda: sfactl(*again),
    lambda: sfactl(*again, env=bare),
    lambda: sfactl(*again, start_new_session=True),
    orphan,
):
    done = ask()
    print(done.returncode, done.stderr)
"""


def test_a_loop_is_refused_for_each_process_of_the_run(
    tmp_path: Path, share: Start, containment: str
) -> None:
    """For a child, a child with a bare environment, one in a session of its own, and a
    double-forked orphan."""
    daemon = share(mode=containment)
    done = daemon.sfactl("run", "--name", "a", "--", *agent(tmp_path, "looping", LOOPING), "a")
    said = [
        line
        for line in done.stdout.splitlines()
        if "it would call itself in a circle (a → b → a)" in line
    ]
    assert [line.split()[0] for line in said] == ["1"] * 4, done.stdout + done.stderr
    refused = json.loads(daemon.sfactl("list", "--json", "--status", "rejected_loop").stdout)[
        "runs"
    ]
    assert [(run["name"], run["chain"]) for run in refused] == [("a", ["a", "b", "a"])] * 4


NO_SECOND_DAEMON = """
bare = {"PATH": os.environ["PATH"]}
for env in (None, bare, bare | {"HOME": sys.argv[1], "XDG_RUNTIME_DIR": sys.argv[1]}):
    done = sfactl("--socket", sys.argv[1] + "/other", "spawn", "--", "true", env=env)
    print(done.returncode, done.stderr)
    done = sfactl("spawn", "--", "true", env=env and env | {"SFAD_SOCKET": sys.argv[1] + "/other"})
    print(done.returncode, done.stderr)
"""


def test_inside_a_run_no_second_daemon_is_started(
    tmp_path: Path, share: Start, containment: str
) -> None:
    daemon = share(mode=containment)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = daemon.sfactl("run", "--", *agent(tmp_path, "starter", NO_SECOND_DAEMON), str(elsewhere))
    codes = [
        line.split(" ", 1)[0] for line in done.stdout.splitlines() if line[:3].strip().isdigit()
    ]
    assert codes == ["69", "0", "69", "69", "69", "69"], done.stdout
    assert list(elsewhere.iterdir()) == []


HUNDRED = """
import json, threading
from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
import pathlib
go = threading.Barrier(100)
answers = []
def ask(i):
    with Client(pathlib.Path(os.environ["SFA_SOCKET"])) as client:
        go.wait()
        spawn = m.Spawn(
            id=client.next_id(), argv=[b"sleep", b"60"], cwd=b"/", env=[b"PATH=/usr/bin:/bin"],
            name=f"child{i}",
        )
        client.send(spawn)
        answers.append(type(client.arrived()[0].reply).__name__)
threads = [threading.Thread(target=ask, args=[i]) for i in range(100)]
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps([answers.count("RunReply"), answers.count("Refused")]))
"""


def test_a_hundred_children_at_once_under_a_budget_of_64_get_64(
    tmp_path: Path, share: Start, containment: str
) -> None:
    daemon = share(mode=containment)
    done = daemon.sfactl("run", "--quiet", "--", *agent(tmp_path, "hundred", HUNDRED))
    assert json.loads(done.stdout) == [64, 36], done.stderr
    refused = json.loads(daemon.sfactl("list", "--json", "--status", "rejected_budget").stdout)[
        "runs"
    ]
    assert len(refused) == 10  # the others are counted in one row


def test_a_claimed_chain_from_outside_is_added(daemon: Daemon) -> None:
    claim = daemon.env | {"SFA_CALL_CHAIN": "a,b", "SFA_NAME": "c", "SFA_DEPTH": "2"}
    env = {key: value for key, value in claim.items() if key != "SFAD_SOCKET"}
    done = daemon.sfactl("run", "--socket", str(daemon.socket), "--name", "b", "--", "true")
    assert done.returncode == 0
    import subprocess

    def claimed(*words: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "sfactl",
            "run",
            "--socket",
            str(daemon.socket),
            *words,
            "--",
            "true",
        ]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    looped = claimed("--name", "b")
    assert looped.returncode == 1
    assert "b → c → b" in looped.stderr
    deep = claimed("--name", "d", "--max-depth", "3")
    assert deep.returncode == 1
    assert "already 3 deep and 3 is the limit" in deep.stderr
    assert claimed("--name", "d").returncode == 0


def test_trees_beyond_the_quota_wait_their_turn(start: Start) -> None:
    daemon = start(config="[quotas]\ntrees_per_user = 2")
    with daemon.client() as client:
        first = [started(client, ["sleep", "60"]) for _ in range(2)]
        low = started(client, ["true"], name="low")
        high = started(client, ["true"], name="high", priority=5)
        assert [low.status, high.status] == ["queued", "queued"]
        refused = daemon.sfactl("run", "--no-queue", "--", "true")
        assert refused.returncode == 1
        assert (
            "2 agent trees are already running and 2 is the limit (quotas.trees_per_user)"
            in refused.stderr
        )
        daemon.sfactl("stop", first[0].id)
        done = [ended(client, run.id) for run in (high, low)]
        assert all(run.status == "completed" for run in done)
        began = [run.started_at for run in done]
        assert None not in began
        assert began == sorted(began)  # type: ignore[type-var]
        wait_until(
            lambda: daemon.sfactl("stop", first[1].id).returncode == 0, "the second is stopped"
        )


def test_an_agent_that_did_not_ask_is_noticed_once_and_by_config_ends_its_run(
    tmp_path: Path, start: Start, containment: str
) -> None:
    daemon = start(
        config='[guard]\nagent_programs = ["mine"]\nunadmitted = "warn"', mode=containment
    )
    (mine := tmp_path / "mine").write_text(f"#!/bin/sh\necho >>{tmp_path}/started\ncat\n")
    mine.chmod(0o755)
    for fifo in ("commands", "hold"):
        os.mkfifo(tmp_path / fifo)
    held = os.open(tmp_path / "hold", os.O_RDWR)
    commands = os.open(tmp_path / "commands", os.O_RDWR)
    begin = f"while read -r word; do {mine} $word <{tmp_path}/hold & done <{tmp_path}/commands"
    with daemon.client() as client:
        run, _ = watched(
            client, ["sh", "-c", begin], meter=None, name="planner", max_descendants=bound(4)
        )
        os.write(commands, b"one\ntwo\n")
        events: list[Event] = []
        while len(events) < 2:
            pushed = [answer.reply for answer in client.arrived()]
            events += [
                push.event
                for push in pushed
                if isinstance(push, m.EventPush) and push.event.type == "unadmitted"
            ]
        assert [(event.program, event.depth, event.action) for event in events] == 2 * [
            ("mine", 1, "warn")
        ]
        assert {event.command for event in events} == {f"/bin/sh {mine} one", f"/bin/sh {mine} two"}
        now = info(client, run.id)
        assert (now.unadmitted, now.descendants) == (2, 2)
    assert "(2 unadmitted)" in daemon.sfactl("tree").stdout
    assert (
        "2 agent programs were started within it without asking the daemon"
        in daemon.sfactl("why", run.id).stdout
    )

    daemon.kill()
    os.write(commands, b"three\n")
    wait_until(
        lambda: (tmp_path / "started").read_text().count("\n") == 3,
        "it runs while there is no daemon",
    )
    daemon.restart()
    with daemon.client() as client:
        wait_until(lambda: (info(client, run.id).unadmitted or 0) > 2, "it is noticed")
        assert info(client, run.id).unadmitted == 3
        assert daemon.log.read_text().count('"type":"unadmitted"') == 3

        daemon.config.write_text(daemon.config.read_text().replace('"warn"', '"terminate"'))
        assert daemon.sfactl("reload").returncode == 0
        os.write(commands, b"four\n")
        over = ended(client, run.id)
    assert (over.status, over.descendants) == ("failed", 4)
    assert over.reason is not None
    assert (over.reason.kind, over.reason.limit_kind) == ("limit", "unadmitted")
    assert (
        f"without asking the daemon: /bin/sh {mine} four; it counts as a descendant (4 of 4)"
        in over.reason.message
    )
    for fd in (held, commands):
        os.close(fd)


ASKING = """
run = ("spawn", "--meter", "none")
for words in (
    [*run, "--allow-tool", "Read", "--allow-tool", "Bash", "--block-tool", "Edit", "--", "true"],
    [*run, "--detach", "--", "true"],
    [*run, "--detach", "--allow-tool", "Write", "--", "true"],
):
    done = sfactl(*words)
    print(done.returncode, done.stdout.strip(), done.stderr.strip(), sep="|")
"""


def test_a_child_has_no_tool_that_its_caller_has_not_and_detaching_is_no_way_out(
    tmp_path: Path, start: Start
) -> None:
    daemon = start(config="[guard]\nallow_detach = true")
    tools = {"allowed_tools": ["Read", "Edit"], "blocked_tools": ["Bash"]}
    with daemon.client() as client:
        caller = ended(client, started(client, agent(tmp_path, "asking", ASKING), **tools).id)
        said = (daemon.state_dir / "output" / f"{caller.id}.out").read_text()
        child, detached, refused = (line.split("|") for line in said.splitlines())
        for (code, run, _), expected in (
            (child, (["Read"], ["Bash", "Edit"])),
            (detached, (["Read", "Edit"], ["Bash"])),
        ):
            assert code == "0"
            request = client.call(m.Recall(id=client.next_id(), run=run), m.Recalled).request
            assert (request.allowed_tools, request.blocked_tools) == expected
    assert refused[0] == "2"
    assert (
        f"none of the tools Write is among those of run {caller.id}, which may use Read, Edit"
        in refused[2]
    )
