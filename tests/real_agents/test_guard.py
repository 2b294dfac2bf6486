"""The shell tool of real agents starts runs, or is refused, and the model reads the result."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CODEX, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import in_a_terminal
from tests.real_agents.script import Say, Shell
from tests.real_agents.test_gateway import PRICES, command, desk_of

CIRCLE = "Do not try again; finish your task with what you already have."


def test_a_run_started_by_the_shell_tool_is_a_child_and_the_model_reads_its_output(
    desk: MakeDesk, cli: Cli
) -> None:
    at = desk(
        **{cli.name: [Shell("sfactl run --name worker -- echo hi from the worker"), Say("Thanks.")]}
    )
    done = at.sfactl("run", "--name", "planner", "--", *cli.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Thanks." in done.stdout
    assert ["hi from the worker" in output for output in at.talk(cli).told()] == [True]
    planner, worker = at.listed()
    assert [run["name"] for run in (planner, worker)] == ["planner", "worker"]
    assert [run["status"] for run in (planner, worker)] == ["completed", "completed"]
    assert (worker["parent_id"], worker["depth"], worker["chain"]) == (
        planner["id"],
        1,
        ["planner", "worker"],
    )


def test_an_agent_that_starts_itself_is_refused_and_the_model_reads_why(
    desk: MakeDesk, cli: Cli, containment: str
) -> None:
    at = desk(
        mode=containment,
        **{
            cli.name: [
                Shell('sfactl run --name planner -- true; echo "it exited with $?"'),
                Say("So be it."),
            ]
        },
    )
    done = at.sfactl("run", "--name", "planner", "--", *cli.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = at.talk(cli).told()
    assert (
        "refused: 'planner' was not started: it would call itself in a circle (planner → planner)"
        in told
    )
    assert CIRCLE in told
    assert "it exited with 1" in told
    planner, again = at.listed()
    assert (again["status"], again["parent_id"], again["pid"]) == (
        "rejected_loop",
        planner["id"],
        None,
    )


@pytest.mark.parametrize(
    ("first", "second"), [(CLAUDE, CODEX), (CODEX, CLAUDE)], ids=["claude first", "codex first"]
)
def test_two_agents_that_start_each_other_are_a_loop(
    desk: MakeDesk, first: Cli, second: Cli
) -> None:
    review = [
        Shell(f"sfactl run --name planner -- {shlex.join(first.argv)}"),
        Say("I finish with what I have."),
    ]
    plan = [Shell(f"sfactl run --name reviewer -- {shlex.join(second.argv)}"), Say("Planned.")]
    at = desk(**{first.name: plan, second.name: review})
    done = at.sfactl("run", "--name", "planner", "--", *first.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = at.talk(second).told()
    assert "(planner → reviewer → planner)" in told
    assert CIRCLE in told
    assert ["I finish with what I have." in output for output in at.talk(first).told()] == [True]
    assert [(run["chain"], run["status"]) for run in at.listed()] == [
        (["planner"], "completed"),
        (["planner", "reviewer"], "completed"),
        (["planner", "reviewer", "planner"], "rejected_loop"),
    ]


def test_an_agent_that_runs_itself_in_its_shell_is_noticed_within_a_second(
    desk: MakeDesk, any_cli: Cli
) -> None:
    again = shlex.join(any_cli.as_text)
    at = desk(**{any_cli.name: [Shell(f"date +%s.%N; {again}"), Say("Inner."), Say("Outer.")]})
    at.env.pop("GEMINI_CLI_NO_RELAUNCH")  # it executes itself again, which does not count
    done = at.sfactl("run", "--name", "planner", "--", *any_cli.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = at.talk(any_cli).told()
    began = float(re.search(r"\d{10}\.\d+", told)[0])  # type: ignore[index]
    (event,) = [
        event
        for line in at.daemon.log.read_text().splitlines()
        if (event := json.loads(line)).get("type") == "unadmitted"
    ]
    assert (event["program"], event["depth"], event["action"]) == (any_cli.name, 1, "warn")
    assert 0 < datetime.fromisoformat(event["time"]).timestamp() - began < 1
    (planner,) = at.listed()
    assert (planner["status"], planner["descendants"]) == ("completed", 1)


def test_the_background_processes_of_codex_are_no_agents_of_their_own(desk: MakeDesk) -> None:
    """It starts them where no `-c` routes it through the gateway, nor keeps it alone."""
    at = desk_of(desk, CODEX, PRICES)

    def alive(words: str) -> bool:
        for file in processes(at.env["CODEX_HOME"]):
            with suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
                if words in file.read_bytes().replace(b"\0", b" ").decode():
                    return True
        return False

    words = ("--no-gateway", "--stdio", "inherit", "--name", "planner", "--")
    script = f"exec {shlex.join(command(CODEX, 'in_terminal'))}"
    with in_a_terminal(at, "run", *words, "sh", "-c", script):
        wait_until(
            lambda: alive("app-server --listen") and alive("app-server daemon pid-update-loop"),
            "they are alive",
        )
        wait_until(lambda: at.talk(CODEX).answered == 3, "it has made its calls")
        (planner,) = at.listed()
        at.sfactl("stop", "planner")
    log = at.daemon.log.read_text().splitlines()
    assert [line for line in log if '"unadmitted"' in line] == []
    assert planner["descendants"] == 0


def processes(home: str) -> list[Path]:
    """Return the command lines of what was executed from this directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "exe").readlink()).startswith(home):
                found.append(process / "cmdline")
        except OSError:
            continue  # it has ended
    return found
