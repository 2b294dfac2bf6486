"""An agent inside a run may act on its own subtree only, whatever it does to its environment or
session."""

from __future__ import annotations

import json
from pathlib import Path

from sfad.protocol import messages as m
from tests.conftest import Start
from tests.harness import agent, started, stopped

ASK = """
import pathlib, sys
from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
path, stranger = pathlib.Path(sys.argv[1]), sys.argv[2]
with Client(path) as client:
    about = {"id": 0, "run": stranger}
    for request in (
        m.Stop(id=0, runs=[stranger]), m.Stop(id=0, runs=[stranger], grace=0),
        m.Pause(**about), m.Resume(**about), m.Logs(**about), m.Result(**about), m.Info(**about),
        m.Wait(**about), m.Send(**about, data=b"x"), m.List(id=0, root=stranger),
    ):
        number = client.send(request)
        (answer,) = client.arrived()
        assert answer.reply.id == number
        print(type(request).__name__, getattr(answer.reply, "code", answer.reply))
"""
"""Prints the daemon's answers to requests about a run."""

INTRUDER = (
    f"ASK = {ASK!r}"
    + """
import json
stranger = sys.argv[1]
bare = {"PATH": os.environ["PATH"], "SFAD_SOCKET": os.environ["SFA_SOCKET"]}
cookie = "000000000000:" + stranger + ":0000000000000000"
lying = bare | {"SFA_RUN_ID": stranger, "SFA_COOKIE": cookie}
words = [sys.executable, "-c", ASK, os.environ["SFA_SOCKET"], stranger]
codes = {"answers": [
    subprocess.run(
        words, env=env, start_new_session=new, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()
    for env, new in ((None, False), (bare, True), (lying, False))
]}
codes["commands"] = [
    sfactl(verb, stranger, env=env).returncode
    for verb in ("stop", "tree") for env in (None, bare, lying)
]
listed = json.loads(sfactl("list", "--json").stdout)["runs"]
codes["list"] = [run["id"] == stranger for run in listed].count(True)
codes["all"] = sfactl("stop", "--all").returncode
script = "read line; echo got $line; sleep 100"
child = sfactl("spawn", "--stdin", "--", "sh", "-c", script).stdout.strip()
codes["own"] = [sfactl(*words).returncode for words in (
    ["send", child, "hello"], ["pause", child], ["info", child], ["resume", child],
    ["logs", child], ["stop", child])]
inner = [sys.executable, "-m", "sfactl", "run", "--", "true"]
codes["leaf"] = sfactl("run", "--leaf", "--name", "leaf", "--", *inner).returncode
print(json.dumps(codes))
"""
)


def test_an_agent_has_no_power_over_other_trees(
    tmp_path: Path, start: Start, containment: str
) -> None:
    daemon = start(mode=containment)
    with daemon.client() as client:
        stranger = started(client, ["sleep", "300"], stdin="pipe")
        done = daemon.sfactl(
            "run", "--quiet", "--", *agent(tmp_path, "intruder", INTRUDER), stranger.id
        )
        codes = json.loads(done.stdout)
        assert codes.pop("list") == 0
        assert codes.pop("all") == 0  # everything below it: nothing
        assert codes.pop("own") == [0] * 6
        assert codes.pop("leaf") == 77
        assert codes.pop("commands") == [77] * 6
        assert len(codes["answers"]) == 3
        for answers in codes["answers"]:
            assert len(answers) == 10, done.stderr
            assert {answer.split()[1] for answer in answers} == {"not_permitted"}, answers
        assert (
            client.call(m.Info(id=client.next_id(), run=stranger.id), m.RunReply).run.status
            == "running"
        )
        stopped(client, stranger.id)
