"""The real programs are held between two calls until a subscription's window is reset, and
complete.

SFAD_TEST_HOLD=900 holds them for a quarter of an hour, which is longer than each of them waits for
a reply."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest

from tests.e2e.subscription import Account, Quota, anthropic_headers, beside_sfad, openai_headers
from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CLIS, CODEX, OPENCODE, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.model import Body, Talk
from tests.real_agents.script import Reply, Say, Shell
from tests.real_agents.test_gateway import GATEWAY, PRICES, calls, command, desk_of, lead

HOLD = float(os.environ.get("SFAD_TEST_HOLD", "15"))
"""Seconds until the reset."""


BELIEVED = "".join(
    f'[gateway.upstreams.{name}]\nurl = "{{model}}/{path}"\napi = "{api}"\n'
    for name, path, api in [
        ("for-claude", "claude", "anthropic"),
        ("for-codex", "codex/v1", "openai-responses"),
        ("for-opencode", "opencode", "anthropic"),
    ]
)
"""What a server that is not the provider's own says of windows counts if the operator names it."""


class Windows:
    """A subscription whose shorter window is used up by the first call, and is reset `HOLD` seconds
    later."""

    def __init__(self, cli: Cli) -> None:
        self._cli = cli
        self.resets_at: float | None = None

    def __call__(self) -> dict[str, str]:
        now = time.time()
        if self.resets_at is None:
            self.resets_at = now + HOLD
        full = now < self.resets_at
        ends = self.resets_at if full else self.resets_at + 18_000
        if self._cli is CODEX:
            return {
                "x-codex-primary-used-percent": "99" if full else "3",
                "x-codex-primary-window-minutes": "300",
                "x-codex-primary-reset-at": f"{ends:.0f}",
            }
        return {
            "anthropic-ratelimit-unified-status": "allowed",
            "anthropic-ratelimit-unified-5h-utilization": "0.99" if full else "0.03",
            "anthropic-ratelimit-unified-5h-reset": f"{ends:.0f}",
        }


@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_a_program_that_is_held_between_two_calls_completes(desk: MakeDesk, name: str) -> None:
    cli = CLIS[name]
    at = desk_of(desk, cli, BELIEVED + PRICES + '[plans]\nkeep = "20%"\n')
    windows = at.talk(cli).headers = Windows(cli)
    run = at.spawn("night", *command(cli, "argv"))

    def held() -> list[str]:
        accounts = at.json("plans")["accounts"]
        return [each for account in accounts for each in account["held"]]

    wait_until(lambda: held() == [run], "the run waits for the reset")
    assert windows.resets_at is not None
    before = at.talk(cli).answered + at.talk(cli).helped
    info = at.json("info", run)
    assert (info["status"], info["reason"]["limit_kind"]) == ("paused", "plan")
    wait_until(
        lambda: at.json("info", run)["status"] != "paused",
        "it goes on by itself",
        seconds=HOLD + 60,
    )
    assert time.time() >= windows.resets_at
    done = at.sfactl("wait", run)
    assert done.returncode == 0, (
        at.sfactl("logs", run).stdout + at.sfactl("logs", "--stderr", run).stdout
    )
    assert at.talk(cli).answered == 3, "each call was made once"
    assert before <= 2 + at.talk(cli).helped
    made = [call for call in calls(at) if call["state"] == "ended"]
    assert all(call["status"] == 200 for call in made), made


TURNS = 4
"""Calls of each agent of the night."""
UNDER_WAY = 5.0
"""Seconds from the admission of a call until its answer, on a machine where a dozen agents start at
once."""
NIGHT = ((CLAUDE, 4), (OPENCODE, 3), (CODEX, 3))


def each_its_own(talk: Talk) -> None:
    """Have each of several agents at once make `TURNS` calls."""

    def decide(body: Body) -> Reply:
        done = len(talk.dialect.tool_outputs(body))
        return Shell(f"echo {done}") if done < TURNS - 1 else Say("Done.")

    talk.decide = decide


def ended(at: Desk, run: str) -> bool:
    return at.json("info", run)["ended_at"] is not None


def told_of(account: Account) -> dict[str, str]:
    """Take a call. Return what the answer tells of the windows."""
    _, quotas = account.call("agent", "")
    return (
        openai_headers(quotas)
        if account.quotas[0].name == "primary"
        else anthropic_headers(200, quotas)
    )


def test_a_night_of_ten_agents_of_three_programs(desk: MakeDesk) -> None:
    """Claude Code and opencode share an account, Codex has another. A person uses the first one
    too, and the daemon is killed."""
    config = GATEWAY + BELIEVED + PRICES + '[plans]\nkeep = "30%"\nkeep_week = "20%"\n'
    at = desk(config=config, claude=(), opencode=(), codex=())
    anthropic = Account(
        quotas=[Quota("5h", 20.0, 0.07), Quota("7d", 3600.0, 0.001)], bounds={"5h": 0.7, "7d": 0.8}
    )
    openai = Account(
        quotas=[Quota("primary", 25.0, 0.09), Quota("secondary", 3600.0, 0.001)],
        bounds={"primary": 0.7, "secondary": 0.8},
    )
    runs = []
    for cli, _ in NIGHT:
        at.talk(cli).headers = partial(told_of, openai if cli is CODEX else anthropic)
        each_its_own(at.talk(cli))
    for cli, agents in NIGHT:
        before = at.env.copy()
        lead(at, cli)
        runs.append(at.spawn(f"{cli.name}-0", *command(cli, "argv")))
        wait_until(
            partial(at.talk(cli).requests.copy),
            f"{cli.name} has made its own files: two at once fail",
            seconds=240,
        )
        for number in range(1, agents):
            if cli is OPENCODE:  # of several that begin at once, its database fails some
                at.env["XDG_DATA_HOME"] = f"{at.env['HOME']}/opencode-{number}"
            runs.append(at.spawn(f"{cli.name}-{number}", *command(cli, "argv")))
        at.env.clear()
        at.env.update(before)

    def held() -> list[str]:
        return [each for account in at.json("plans")["accounts"] for each in account["held"]]

    wait_until(lambda: held(), "runs wait for a reset", seconds=240)
    person = threading.Thread(target=beside_sfad, args=[anthropic, 10.0])
    person.start()
    try:
        at.daemon.kill()
        at.daemon.restart()
        for run in runs:
            wait_until(partial(ended, at, run), f"{run} has ended", seconds=480, pause=0.5)
            done = at.sfactl("wait", run)
            assert done.returncode == 0, (
                at.sfactl("logs", run).stdout + at.sfactl("logs", "--stderr", run).stdout
            )
    finally:
        person.join()
    assert {cli.name: at.talk(cli).answered for cli, _ in NIGHT} == {
        cli.name: agents * TURNS for cli, agents in NIGHT
    }
    for account in (anthropic, openai):
        assert not [
            each
            for each in account.arrivals
            if each.told >= 0 and each.at - each.told_at > UNDER_WAY
        ]
    assert sorted(account["provider"] for account in at.json("plans")["accounts"]) == [
        "anthropic",
        "openai",
    ], "each is known once"
    shares = [share for run in runs for share in at.json("info", run)["plans"]]
    taken = sum(len(account.arrivals) * account.quotas[0].each for account in (anthropic, openai))
    assert (
        0
        < sum(share["share"] for share in shares if share["window"] in {"5h", "primary"})
        <= taken + 0.3 + 0.001
    )
