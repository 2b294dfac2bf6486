"""`sfactl recommend`: its table, and what it says of too few runs."""

from __future__ import annotations

import json
from typing import Any

from sfactl.commands import recommend
from sfad.features.advice.messages import Advice, Recommended
from sfad.protocol.types import Action, Limit, LimitKind
from tests.harness import Daemon

COST = LimitKind.COST


def advice(kind: LimitKind, **changes: Any) -> Advice:
    fields: dict[str, Any] = {
        "p95": None,
        "suggested": None,
        "limit": None,
        "runs": 0,
        "ended": 0,
        "failed_share": None,
    }
    return Advice(kind=kind, least=1, most=None, **(fields | changes))


def test_advice_is_a_table() -> None:
    found = Recommended(
        id=1,
        runs=20,
        advice=[
            advice(COST, p95=0.31, suggested=0.4, runs=20, ended=25, failed_share=0.08),
            advice(LimitKind.TOKENS, note="too few"),
        ],
        in_force=[
            Limit(kind=COST, threshold=1, action=Action.TERMINATE),
            Limit(kind=LimitKind.TIME, threshold=120, source="type qa"),
        ],
    )
    assert list(recommend.rows(found)) == [
        ("time", "2m", "type qa", "-", "-", "-", "-"),
        ("tokens", "none", "-", "-", "-", "-", "0"),
        ("cost", "1.00 USD → terminate", "default", "0.31 USD", "0.40 USD", "8 %", "20"),
    ]
    assert recommend.verdict(found) == "learnt from 20 successful runs\ntokens: too few"


def test_too_few_runs_are_said_to_be_too_few() -> None:
    found = Recommended(id=1, runs=1, advice=[advice(COST, runs=1, ended=1)], in_force=[])
    assert (
        recommend.verdict(found)
        == "1 successful run in the ledger: too few to recommend anything; keep the limits in force"
    )


def test_a_type_without_runs(common: Daemon) -> None:
    common.sfactl("run", "-q", "--type", "qa", "--", "true")
    done = common.sfactl("recommend", "--type", "qa").stdout
    assert done.startswith("KIND")
    assert "too few" in done
    assert "type qa" in done
    found = json.loads(common.sfactl("recommend", "--json").stdout)
    assert {"runs", "advice", "in_force"} == set(found)


def test_a_type_and_a_name_exclude_each_other(common: Daemon) -> None:
    done = common.sfactl("recommend", "--type", "qa", "--name", "n")
    assert "exclude each other" in done.stderr
