"""Budgets in a daemon of a fleet, whose keeper is elsewhere or not known."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from sfactl.connecting.connection import DaemonError
from sfad.features.budgets.messages import AskAllowances
from sfad.protocol import messages as m
from tests.harness import running, started


def test_while_it_is_not_known_who_keeps_the_budgets_nothing_is_spent(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    config = (
        f'[fleet]\naddress = "127.0.0.1:1"\n[budgets.users.{user}]\ndaily_usd = '
        "5\n[prices.m]\ninput_mtok = 1\noutput_mtok = 1\n"
    )
    with running(tmp_path, config=config) as daemon, daemon.client() as client:
        run = started(client, ["sleep", "300"]).id
        asked = m.Reserve(id=0, run=run, model="m", input_tokens=1000, max_output_tokens=0)
        refused = client.call(asked, m.Reserved).refused
        assert refused is not None
        assert (
            "it is not known yet which node keeps the budgets (sfactl fleet status)"
            in refused.message
        )
        status = daemon.sfactl("fleet", "status")
        assert (status.returncode, "not connected" in status.stdout) == (75, True), status
        assert json.loads(daemon.sfactl("fleet", "status", "--json").stdout)["keeper"] is None
        client.call(m.Stop(id=0, runs=[run]), m.Stopped)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            '[fleet]\naddress = "127.0.0.1:1"\nnode = "n2"\nkeeper = "n1"\n',
            "node n2 does not keep the budgets of this fleet; for it the keeper is n1",
        ),
        ("", "this daemon shares nothing with other machines"),
    ],
    ids=["another keeps them", "no fleet"],
)
def test_a_daemon_that_keeps_no_budgets_gives_nobody_any(
    tmp_path: Path, config: str, why: str
) -> None:
    with (
        running(tmp_path, config=config) as daemon,
        daemon.client() as client,
        pytest.raises(DaemonError, match=why),
    ):
        client.call(AskAllowances(id=0, node="n3", number=1), m.Reply)
