"""Programs of an ordinary user, who has installed sfad where they could: Gemini CLI uses the
gateway by default, and a run whose program goes around it is ended.

The settings of Gemini CLI do not choose the key: with it in a variable or a file, the program
starts without a question, and calls Google.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path

import pytest

from tests.harness import running, wait_until
from tests.real_agents.clis import (
    CLAUDE,
    CODEX,
    GEMINI_CLI,
    OPENCODE,
    QWEN,
    Cli,
    environment,
    packages,
)
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, in_a_terminal
from tests.real_agents.model import serving
from tests.real_agents.script import Reply, Write
from tests.real_agents.test_around import (
    CALL,
    HOW,
    LIMIT,
    assert_ended,
    cleared,
    script,
    writing,
)
from tests.real_agents.test_bill import CONFIG as DEFAULT
from tests.unprivileged import GONE, Place, place

CONFIG = """
[gateway.upstreams.gemini]
url = "{model}/gemini"
api = "gemini"
[prices]
"gemini-2.5-pro" = {input_mtok = 3, cached_mtok = 0.3, output_mtok = 15}
"""
WAYS = ("named", "text", "terminal", "script")
SETTINGS = '{"privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false}}'


@pytest.fixture
def ordinary(commands: Path, tmp_path: Path) -> Iterator[MakeDesk]:
    """Makes the desk of an ordinary user, as `desk` does, with an empty home directory. The
    interpreter and the checkout are below /tmp."""
    with ExitStack() as stack:
        nobody = stack.enter_context(place(agents=packages())) if os.geteuid() == 0 else None
        directory = nobody.directory if nobody is not None else tmp_path
        found = (
            commands if nobody is None else nobody.directory / "agents" / "node_modules" / ".bin"
        )

        def make(*, config: str, mode: str = "auto", **scripts: Iterable[Reply]) -> Desk:
            model = stack.enter_context(serving(scripts))
            for own in ("daemon", "home"):
                (directory / own).mkdir()
                owned(directory / own, nobody)
            config = config.replace("{model}", model.url)
            daemon = stack.enter_context(
                running(directory / "daemon", nobody=nobody, config=config, mode=mode)
            )
            kept = {
                name: value
                for name, value in daemon.env.items()
                if name.startswith(("SFAD_", "PYTHONPATH", "LANG"))
            }
            env = {"HOME": str(directory / "home"), "PATH": f"{found}:{os.environ['PATH']}"}
            return Desk(daemon, model, kept | env, nobody)

        yield make


@pytest.fixture
def theirs(ordinary: MakeDesk) -> Desk:
    """The desk of an ordinary user of Gemini CLI."""
    at = ordinary(config=CONFIG, gemini=repeat(Write(8_000)))
    settings = Path(at.env["HOME"], ".gemini", "settings.json")
    settings.parent.mkdir()
    settings.write_text(SETTINGS)
    at.env["GEMINI_CLI_TRUST_WORKSPACE"] = "true"
    owned(settings.parent, at.nobody)
    owned(settings, at.nobody)
    return at


@pytest.fixture
def untracked(ordinary: MakeDesk) -> Callable[..., Desk]:
    """Makes the desk of an ordinary user without a cgroup, whose programs are set up."""

    def make(**scripts: Iterable[Reply]) -> Desk:
        at = ordinary(config=DEFAULT, mode="tags", **scripts)
        home = Path(at.env["HOME"])
        at.env.update(environment(home, at.model.url))
        shutil.rmtree(home / ".cache")  # of Copilot CLI, with links to files of all tests
        for path in home.rglob("*"):
            owned(path, at.nobody)
        return at

    return make


def owned(path: Path, nobody: Place | None) -> Path:
    """Return a path, which belongs to the user if it is there."""
    if nobody is not None and path.exists():
        os.chown(path, GONE, GONE)
    return path


@pytest.mark.parametrize(
    ("way", "key"),
    [
        ("named", "variable"),
        ("text", "file"),
        ("terminal", "variable"),
        ("script", "file"),
        ("script", "variable"),
    ],
)
def test_gemini_cli_of_an_ordinary_user_stays_below_its_limit(
    theirs: Desk, way: str, key: str
) -> None:
    settings = Path(theirs.env["HOME"], ".gemini", "settings.json")
    if key == "variable":
        theirs.env["GEMINI_API_KEY"] = "scripted"
    else:
        settings.with_name(".env").write_text("GEMINI_API_KEY=scripted\n")
    words = ["run", "--limit", f"cost={LIMIT}", "--limit", "turns=100", "--timeout", "5m"]
    if way != "script":
        words.append("--mcp")
    bills = theirs.talk(GEMINI_CLI).bills
    carry_out(theirs, GEMINI_CLI, way, words)
    assert_bounded(theirs, bills)
    assert settings.read_text() == SETTINGS
    # the settings of `--mcp` are in .cache/sfad
    own = {".cache", ".gemini"} if way != "script" else {".gemini"}
    assert {path.name for path in Path(theirs.env["HOME"]).iterdir()} == own


def carry_out(at: Desk, program: Cli, way: str, words: Sequence[str]) -> None:
    """Start a program as a person does, and wait until the limit has ended it."""
    if way == "terminal":
        command = ("--stdio", "inherit", "--", *program.in_terminal)
        with in_a_terminal(at, *words, *command) as client:
            wait_until(lambda: client.poll() is not None, "the limit has ended it", seconds=180)
        return
    commands = {
        "named": program.by_name,
        "text": ("--", *program.as_text),
        "script": ("--", "sh", "-c", f"{shlex.join(program.as_text)}; true"),
    }
    at.sfactl(*words, *commands[way])


def assert_bounded(at: Desk, bills: Sequence[float]) -> None:
    """The limit has ended the run, of which the gateway has seen each call."""
    root = at.listed()[0]
    assert (root["status"], root["reason"]["limit_kind"]) == ("failed", "cost"), root
    assert 0.5 * LIMIT < sum(bills) <= 1.02 * LIMIT
    assert root["total_cost_usd"] == pytest.approx(sum(bills), rel=0.01), root


@pytest.mark.parametrize(
    ("program", "way"),
    [
        pytest.param(program, way, id=f"{program.name}-{way}")
        for program, sample in (
            (CLAUDE, "terminal"),
            (CODEX, "script"),
            (GEMINI_CLI, None),
            (OPENCODE, None),
            (QWEN, None),
        )
        for way in WAYS
        if way == sample or os.environ.get("SFAD_TEST_AGENTS") == "all"
    ],
)
def test_the_bill_of_an_ordinary_user_stays_below_its_limit(
    untracked: Callable[..., Desk], program: Cli, way: str
) -> None:
    at = untracked(**{program.name: repeat(Write(CALL))})
    words = ["run", "--limit", f"cost={LIMIT}", "--limit", "turns=100", "--timeout", "5m"]
    carry_out(at, program, way, words)
    assert_bounded(at, at.talk(program).bills)


@pytest.mark.parametrize(
    ("program", "how"),
    [
        (CLAUDE, "exec"),
        (CLAUDE, "below"),
        (CLAUDE, "alone"),
        (CODEX, "exec"),
        (CODEX, "below"),  # alone, its command leads it
        (GEMINI_CLI, "exec"),
        (GEMINI_CLI, "below"),
        (GEMINI_CLI, "alone"),
        (OPENCODE, "exec"),
        (OPENCODE, "below"),
        (OPENCODE, "alone"),
        (QWEN, "exec"),
        (QWEN, "below"),
        (QWEN, "alone"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_run_of_an_ordinary_user_ends_before_the_second_call_around_the_gateway(
    untracked: Callable[..., Desk], program: Cli, how: str
) -> None:
    """Without a cgroup, and without the kernel's word about what is executed."""
    at = untracked(**{program.name: writing()})
    line = cleared(at, program.as_text)
    command = ["--", *shlex.split(line)] if how == "alone" else script(at, HOW[how].format(line))
    at.sfactl("run", "--limit", f"cost={LIMIT}", "--timeout", "5m", *command)
    (run,) = at.listed()
    assert_ended(run, at.talk(program).bills, program)
    assert "at least" in at.sfactl("info", run["id"]).stdout


@pytest.mark.parametrize("way", ["named", "text", "script"])
def test_gemini_cli_that_cannot_use_the_gateway_is_refused_below_a_typed_limit(
    theirs: Desk, way: str
) -> None:
    theirs.env.update(GEMINI_API_KEY="scripted", GOOGLE_GENAI_USE_VERTEXAI="true")
    command = {"named": GEMINI_CLI.by_name, "text": ("--", *GEMINI_CLI.as_text)}
    script = ("--", "sh", "-c", shlex.join(GEMINI_CLI.as_text))
    done = theirs.sfactl("run", "--limit", f"cost={LIMIT}", *command.get(way, script))
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert f"cost limit {'of run' if way == 'script' else 'of 0.50 USD'}" in said
    assert "Gemini CLI uses Vertex AI" in said
    assert "set security.auth.selectedType to gemini-api-key in ~/.gemini/settings.json" in said
    assert theirs.talk(GEMINI_CLI).bills == []
