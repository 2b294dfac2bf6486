"""An agent inside a run may act on its own subtree only, whatever it does to its environment or session."""

from __future__ import annotations

import json
from pathlib import Path

from sfad.protocol import messages as m
from tests.conftest import Start
from tests.harness import agent, started, stopped

INTRUDER = """
import json
stranger = sys.argv[1]
bare = {"PATH": os.environ["PATH"], "SFAD_SOCKET": os.environ["SFA_SOCKET"]}
lying = bare | {"SFA_RUN_ID": stranger, "SFA_COOKIE": "000000000000:" + stranger + ":0000000000000000"}
codes = {}
for line in ("stop", "stop --grace 0", "pause", "resume", "logs", "result", "info", "wait", "send", "tree"):
    verb = line.split()
    words = [*verb, stranger, *(["x"] if verb == ["send"] else [])]
    for env, new in ((None, False), (bare, True), (lying, False)):
        codes.setdefault(line, []).append(sfactl(*words, env=env, start_new_session=new).returncode)
codes["list"] = [run["id"] == stranger for run in json.loads(sfactl("list", "--json").stdout)["runs"]].count(True)
codes["all"] = sfactl("stop", "--all").returncode
child = sfactl("spawn", "--stdin", "--", "sh", "-c", "read line; echo got $line; sleep 100").stdout.strip()
codes["own"] = [sfactl(*words).returncode for words in (
    ["send", child, "hello"], ["pause", child], ["info", child], ["resume", child], ["logs", child], ["stop", child])]
codes["leaf"] = sfactl("run", "--leaf", "--name", "leaf", "--", sys.executable, "-m", "sfactl", "run", "--", "true").returncode
print(json.dumps(codes))
"""


def test_an_agent_has_no_power_over_other_trees(tmp_path: Path, start: Start, containment: str) -> None:
    daemon = start(mode=containment)
    with daemon.client() as client:
        stranger = started(client, ["sleep", "300"], stdin="pipe")
        done = daemon.sfactl("run", "--quiet", "--", *agent(tmp_path, "intruder", INTRUDER), stranger.id)
        codes = json.loads(done.stdout)
        assert codes.pop("list") == 0
        assert codes.pop("all") == 0  # everything below it: nothing
        assert codes.pop("own") == [0] * 6
        assert codes.pop("leaf") == 77
        assert codes == {verb: [77] * 3 for verb in codes}, done.stderr
        assert client.call(m.Info(id=client.next_id(), run=stranger.id), m.RunReply).run.status == "running"
        stopped(client, stranger.id)
