"""Verbs with --fleet, and runs that are named NODE/ID, in a fleet whose one node is this
machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sfactl import over_fleet
from sfactl.__main__ import execute
from sfactl.fleet import Names

from . import samples
from .conftest import World


@pytest.fixture
def run(shared: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A live run of the node `here`."""

    class Alone:
        names = ("here",)
        own = "here"

        def __init__(self, _flag: str | None) -> None:
            pass

        def place(self, _node: str) -> str:
            return str(shared.socket)

        def find(self, handle: str, _verb: str) -> tuple[str, str]:
            node, _, name = handle.partition("/")
            return node, name

        def each(
            self, do: Callable[[str], Any], within: float | None = None
        ) -> tuple[dict[str, Any], dict[str, str]]:
            del within
            return {"here": do("here")}, {}

    monkeypatch.setattr(over_fleet, "Fleet", Alone)
    monkeypatch.setenv("SFAD_SOCKET", "/nonexistent")
    found = shared.spawn(
        "--name", "far", "--label", "k=fleet", "--", "sh", "-c", "echo out; exec sleep 100"
    )
    yield found
    shared.sfactl("stop", found)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("list --fleet --status running --name far --label k=fleet --since 1h", "here"),
        ("tree --fleet", "far"),
        ("summary --fleet --by label", "run"),
        ("plans --fleet", ""),
        ("events --fleet --tail 3 --type run_started", "here  "),
        ("events --fleet --since 0 --json", '{"node":"here"'),
        ("logs --fleet here/RUN --tail 4096B", ""),
        ("info here/RUN", "far"),
        ("why here/RUN", ""),
        ("pause here/RUN", ""),
        ("resume --fleet --name far", ""),
        ("limit here/RUN time=30m turns=70", ""),
        ("limit --fleet --name far turns=60", ""),
    ],
)
def test_a_verb_is_carried_out_on_the_node(
    run: str, line: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(line.replace("RUN", run).split()) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pause --fleet", "name runs as NODE/ID"),
        ("events --fleet --run a1", "--fleet and --run exclude each other"),
        ("logs --fleet here/a1 --tail 5", "give bytes"),
        ("top --fleet a1", "leave out RUN"),
        ("list --fleet --sum", "--fleet and --sum exclude each other"),
    ],
)
def test_what_a_fleet_cannot_do(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(line.split()) == 2
    assert said in capsys.readouterr().err


def test_a_slash_in_the_name_of_a_verb_is_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["help", "a/b"]) == 2
    assert "unknown verb 'a/b'" in capsys.readouterr().err


def test_a_command_of_a_hold_names_runs_as_the_fleet_does() -> None:
    commands = {
        "sfactl resume a1 [--limit turns=N]": "sfactl resume n2/a1 [--limit turns=N]",
        "sfactl approve a1, or sfactl deny a1": "sfactl approve n2/a1, or sfactl deny n2/a1",
        "sfactl why b10": "sfactl why n2/b10",
        "sfactl resume n3/a7": "sfactl resume n3/a7",
        "sfactl calls a1": "sfactl calls n2/a1",
        "sfactl plans": "sfactl plans",
        "sfactl reload": "sfactl reload",
    }
    holds = tuple(samples.hold("person", command=command) for command in commands)
    named = Names().named("n2", samples.run(holds=holds))
    assert [each.command for each in named.holds] == list(commands.values())
