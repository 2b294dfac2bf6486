"""The real programs are held between two calls until a subscription's window is reset, and complete.

SFAD_TEST_HOLD=900 holds them for a quarter of an hour, which is longer than each of them waits for a reply."""

from __future__ import annotations

import os
import time

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLIS, CODEX, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.test_gateway import PRICES, calls, command, desk_of

HOLD = float(os.environ.get("SFAD_TEST_HOLD", "15"))
"""Seconds until the reset."""


class Windows:
    """A subscription whose shorter window is used up by the first call, and is reset `HOLD` seconds later."""

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
    at = desk_of(desk, cli, PRICES + '[plans]\nkeep = "20%"\n')
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
    wait_until(lambda: at.json("info", run)["status"] != "paused", "it goes on by itself", seconds=HOLD + 60)
    assert time.time() >= windows.resets_at
    done = at.sfactl("wait", run)
    assert done.returncode == 0, at.sfactl("logs", run).stdout + at.sfactl("logs", "--stderr", run).stdout
    assert at.talk(cli).answered == 3, "each call was made once"
    assert before <= 2 + at.talk(cli).helped
    made = [call for call in calls(at) if call["state"] == "ended"]
    assert all(call["status"] == 200 for call in made), made
