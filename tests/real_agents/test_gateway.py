"""The real programs make each call through the gateway, and a call that it refuses ends them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CLIS, CODEX, GEMINI_CLI, OPENCODE, QWEN, Cli, packages
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, in_a_terminal
from tests.real_agents.script import Reply, Say, Shell, Stall

MODELS = ("claude-sonnet-4-5", "gpt-6.1-sol", "gemini-2.5-pro", "qwen3-coder-plus", "gpt-5.1")
GATEWAY = "[gateway]\nenabled = true\n"
PRICES = "[prices]\n" + "".join(
    f'"{model}" = {{input_mtok = 3, cached_mtok = 0.3, output_mtok = 15}}\n' for model in MODELS
)
DEAR = "min_output = 100\n[prices]\n" + "".join(
    f'"{model}" = {{input_mtok = 0, output_mtok = 1000}}\n' for model in MODELS
)
"""A reply is 0.06 to 0.09 USD, and a call is not lowered below 0.10."""
CODEX_QUIET = (
    "check_for_update_on_startup = false\n[analytics]\nenabled = false\n[features]\nplugins = "
    "false\napps = false\n"
)
"""Settings with which Codex asks nothing of other hosts."""
SCRIPT = (Shell("echo one"), Shell("echo two"), Say("Done."))


def desk_of(
    desk: MakeDesk, cli: Cli, config: str, script: Iterable[Reply] = SCRIPT, *, mode: str = "auto"
) -> Desk:
    """Return a desk where the program finds its model by its variable alone; Codex, which follows
    none, by its settings."""
    at = desk(config=GATEWAY + config, mode=mode, **{cli.name: script})
    lead(at, cli)
    return at


def lead(at: Desk, cli: Cli) -> None:
    """Have the program find its model as in `desk_of`."""
    if cli is CODEX:
        settings = Path(at.env["CODEX_HOME"], "config.toml")
        settings.write_text(f'openai_base_url = "{at.model.url}/codex/v1"\n{CODEX_QUIET}')
        # else it asks for it in a terminal
        settings.with_name("auth.json").write_text(
            '{"auth_mode": "apikey", "OPENAI_API_KEY": "scripted"}'
        )
    if cli is OPENCODE:
        own = json.loads(at.env["OPENCODE_CONFIG_CONTENT"])
        del own["provider"]
        at.env["OPENCODE_CONFIG_CONTENT"] = json.dumps(own)
        at.env["ANTHROPIC_BASE_URL"] = f"{at.model.url}/opencode"


def command(cli: Cli, form: str) -> list[str]:
    """Return the command of a program."""
    model = ["--model", MODELS[0]] if cli is CLAUDE else []
    return [*getattr(cli, form), *model]


def metered(at: Desk) -> dict[str, Any]:
    """Return what the gateway has seen of the only run."""
    (run,) = at.listed()
    usage: dict[str, Any] = at.json("info", run["id"])["usage_by_source"]["gateway"]
    return usage


def calls(at: Desk) -> list[dict[str, Any]]:
    """Return the calls of the only run."""
    (run,) = at.listed()
    return [
        json.loads(line) for line in at.sfactl("calls", "--json", run["id"]).stdout.splitlines()
    ]


@pytest.mark.parametrize("isolation", ["--isolate", "--isolate=net", "--isolate=net --egress=*"])
def test_each_program_works_in_a_sandbox(desk: MakeDesk, any_cli: Cli, isolation: str) -> None:
    """It finds its own settings and the gateway, also where that is its proxy too, and can write to
    its own files and its working directory."""
    if any_cli is QWEN and "egress" in isolation:
        pytest.skip(
            "it sends calls to 127.0.0.1 to its proxy, "
            "which the gateway does not do for it (docs/gateway.md)"
        )
    at = desk_of(desk, any_cli, PRICES, (Shell("echo one > written"), Say("Done.")))
    del at.env["CLAUDE_CODE_TMPDIR"]  # only a TMPDIR that cannot be written is replaced there
    work = Path(at.env["HOME"], "work")
    work.mkdir()
    done = at.sfactl("run", *isolation.split(), "--cwd", str(work), *any_cli.by_name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (work / "written").exists(), done.stdout + done.stderr
    assert metered(at)["turns"] == 1


@pytest.mark.parametrize("form", ["argv", "as_text"])
def test_each_program_is_metered_by_the_gateway(
    desk: MakeDesk, any_cli: Cli, containment: str, form: str
) -> None:
    at = desk_of(desk, any_cli, PRICES, mode=containment)
    done = at.sfactl("run", "--name", "planner", "--", *command(any_cli, form))
    assert done.returncode == 0, done.stdout + done.stderr
    usage = metered(at)
    assert (usage["turns"], usage["partial"]) == (2, False)
    replies = at.talk(any_cli).answered + at.talk(any_cli).helped
    assert usage["messages"] == replies
    assert usage["output_tokens"] == replies * any_cli.price.output
    assert usage["cost_usd"] > 0
    (run,) = at.listed()
    assert run["usage"]["cost_usd"] == usage["cost_usd"], "whatever the program's own prices are"
    for told in at.json("info", run["id"])["usage_by_source"].values():
        for count in ("messages", "input_tokens", "output_tokens"):
            assert (told[count] or 0) <= usage[count], told
    made = [call for call in calls(at) if call["state"] == "ended" and call["status"] == 200]
    assert (len(made), sum(call["tools"] for call in made)) == (replies, 2)
    assert sum(call["cost_usd"] for call in made) == pytest.approx(usage["cost_usd"])
    assert {call["error"] for call in made} == {None}


def test_each_program_stops_with_the_sentence_of_the_refusal(desk: MakeDesk, any_cli: Cli) -> None:
    at = desk_of(desk, any_cli, DEAR)
    done = at.sfactl(
        "run",
        "--name",
        "planner",
        "--limit",
        "cost=0.15:refuse",
        "--",
        *command(any_cli, "as_text"),
    )
    assert done.returncode != 0, done.stdout + done.stderr
    assert "above its cost limit" in done.stdout + done.stderr
    assert at.talk(any_cli).answered == 1
    assert [call["state"] for call in calls(at)].count("refused") >= 1


def test_codex_finds_the_gateway_by_its_name(desk: MakeDesk) -> None:
    at = desk_of(desk, CODEX, PRICES)
    done = at.sfactl("run", *CODEX.by_name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert metered(at)["turns"] == 2


def test_each_program_is_metered_in_a_terminal(desk: MakeDesk, any_cli: Cli) -> None:
    at = desk_of(desk, any_cli, PRICES)
    with in_a_terminal(
        at, "run", "--stdio", "inherit", "--name", "planner", "--", *command(any_cli, "in_terminal")
    ):
        wait_until(lambda: at.talk(any_cli).answered == 3, "it has made its calls")
        (run,) = at.listed()
        at.sfactl("stop", run["id"])
    assert metered(at)["turns"] == 2


@pytest.mark.parametrize("any_cli", [name for name in CLIS if name != "copilot"], indirect=True)
def test_each_program_starts_with_a_placeholder_instead_of_a_key(
    desk: MakeDesk, any_cli: Cli, tmp_path: Path
) -> None:
    """Copilot CLI has no provider until a person sets one of their own."""
    (tmp_path / "key").write_text("scripted")
    at = desk_of(desk, any_cli, PRICES)
    path = {"codex": "/codex/v1", "opencode": "/opencode", "qwen": "/qwen/v1"}.get(
        any_cli.name, f"/{any_cli.name}"
    )
    openai = ("openai", "openai-responses")
    name, api = {"codex": openai, "qwen": openai, "gemini": ("gemini", "gemini")}.get(
        any_cli.name, ("anthropic",) * 2
    )
    upstream = f'url = "{at.model.url}{path}"\napi = "{api}"\nkey_file = "{tmp_path / "key"}"\n'
    at.daemon.config.write_text(
        f"{at.daemon.config.read_text()}[gateway.upstreams.{name}]\n{upstream}"
    )
    assert at.sfactl("reload").returncode == 0
    for variable in [each for each in at.env if each.endswith(("_BASE_URL", "_API_KEY"))]:
        del at.env[variable]
    if any_cli is CODEX:
        Path(at.env["CODEX_HOME"], "config.toml").write_text(CODEX_QUIET)
    state = Path(at.env["HOME"], ".claude.json")
    state.write_text(
        json.dumps(
            {
                key: value
                for key, value in json.loads(state.read_text()).items()
                if key != "customApiKeyResponses"
            }
        )
    )
    done = at.sfactl("run", "--name", "planner", "--", *command(any_cli, "as_text"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert metered(at)["turns"] == 2
    if any_cli is CLAUDE:  # there it asks about an ANTHROPIC_API_KEY that it does not know
        before = at.talk(any_cli).answered
        with in_a_terminal(
            at,
            "run",
            "--stdio",
            "inherit",
            "--name",
            "planner",
            "--",
            *command(any_cli, "in_terminal"),
        ):
            wait_until(lambda: at.talk(any_cli).answered > before, "it has made a call")
            at.sfactl("stop", "planner")


def test_a_reply_to_a_paused_program_is_charged_and_not_lost(desk: MakeDesk, any_cli: Cli) -> None:
    at = desk_of(desk, any_cli, PRICES, (Shell("echo one"), Stall("I think so.")))
    run = at.spawn("planner", *command(any_cli, "as_text"))
    talk = at.talk(any_cli)
    wait_until(lambda: talk.stalled, "a reply is in its middle")
    paused = at.sfactl("pause", run)
    assert "the gateway reads and counts it" in paused.stderr
    at.model.released.set()
    wait_until(
        lambda: {call["state"] for call in calls(at)} == {"ended"}, "the gateway has read it"
    )
    charged = metered(at) | {"elapsed_s": 0}
    assert charged["messages"] == talk.answered + talk.helped
    at.sfactl("resume", run)
    assert at.sfactl("wait", run).returncode == 0
    assert "I think so." in at.sfactl("logs", run).stdout
    assert metered(at) | {"elapsed_s": 0} == charged


@pytest.mark.parametrize("cli", [CLAUDE, CODEX, GEMINI_CLI], ids=lambda cli: cli.name)
@pytest.mark.parametrize("action", ["warn", "terminate"])
def test_a_program_that_a_script_calls_around_the_gateway_is_metered_by_its_session_file(
    desk: MakeDesk, cli: Cli, action: str
) -> None:
    """By its path, which leads to no shim, and with the model's own address."""
    at = desk(config=GATEWAY + PRICES, **{cli.name: SCRIPT})
    program, *words = cli.as_text
    direct = [f"{name}={at.env[name]}" for name in ("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL")]
    script = (
        f"env {shlex.join(direct)} {packages() / 'node_modules/.bin' / program} "
        f"{shlex.join(words)}; sleep 3"
    )
    done = at.sfactl(
        "run", "--limit", f"cost=5:{action}", "--name", "night", "--", "sh", "-c", script
    )
    (run,) = at.listed()
    answered = at.talk(cli).answered
    # a busy machine may let it make a second call before its first is seen
    assert answered == 3 if action == "warn" else answered < 3
    events = [
        json.loads(line)
        for line in at.sfactl("events", "--json", "--type", "gateway_bypassed").stdout.splitlines()
    ]
    assert [(each["run_id"], each["severity"]) for each in events] == [(run["id"], "high")]
    assert "its session file tells of" in events[0]["message"]
    assert done.returncode == (4 if action == "terminate" else 0), done.stdout + done.stderr
    if action == "warn":
        usage = at.json("info", run["id"])["usage_by_source"]["session"]
        assert usage["output_tokens"] == 3 * cli.price.output
