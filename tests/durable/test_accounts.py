"""Accounts as they are saved: in USD."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.core.state.account import Account, OpenReservation, Use
from sfad.core.state.money import to_nanos, to_usd
from sfad.durable.snapshots import from_saved, to_saved
from sfad.protocol.types import LimitKind
from tests.tiers import first

HOLD = {
    "model": "m",
    "input_tokens": 9,
    "output_tokens": 1,
    "cost": 0.1,
    "role": "planning",
    "periods": [["user", "ann", "today"]],
}
USE = {
    "turns": 3, "messages": None, "input_tokens": 10, "output_tokens": 2, "cached_tokens": None,
    "cost": 0.31, "cost_from": "agent", "planning_cost": 0.30000000000000004,
    "execution_cost": None, "unpriced_tokens": None, "partial": True, "estimated": False,
}  # fmt: skip
SAVED = {
    "sources": {"report": USE},
    "reservations": {"a1-1": HOLD},
    "reserved_by_agent": {"tokens": 10, "cost": 0.1, "planning_cost": 0.1},
    "below": {"tokens": 1115, "cost": 0.30000000000000004},
    "ended": {"cost": 0.1},
    "ended_unsure": {},
    "printed_ended": {},
    "levels": {"memory": 4096.0},
}
"""One sum of money has the error of a binary fraction."""


def loaded(data: object) -> Account:
    return msgspec.msgpack.decode(
        msgspec.msgpack.encode(data, enc_hook=to_saved), type=Account, dec_hook=from_saved
    )


def test_dollars_are_loaded_as_nano_dollars() -> None:
    account = loaded(SAVED)
    assert account.sources["report"].cost == 310_000_000
    assert account.sources["report"].planning_cost == account.below[LimitKind.COST] == 300_000_000
    assert account.reservations["a1-1"] == OpenReservation(
        "m", 9, 1, 100_000_000, "planning", (("user", "ann", "today"),)
    )
    assert account.reserved_by_agent == {
        "tokens": 10,
        "cost": 100_000_000,
        "planning_cost": 100_000_000,
    }
    assert account.used(LimitKind.TOKENS) == 12 + 1115 + 10


@first(2)
@pytest.mark.parametrize(
    "form",
    [
        None,
        [],
        7,
        {},
        SAVED | {"reserved_by_agent": None},
        SAVED | {"sources": {"report": 1}},
        SAVED | {"reserved_by_agent": {"x": "y"}},
        SAVED | {"reserved_by_agent": {"cost": "y"}},
    ],
)
def test_a_form_of_another_version_is_not_valid(form: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        loaded(form)


def test_money_is_saved_in_dollars() -> None:
    account = Account(
        {"stream": Use(turns=1, cost=250_000_000)},
        below={LimitKind.COST: 1_500_000_000, LimitKind.TOKENS: 7},
    )
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(account, enc_hook=to_saved))
    assert saved["sources"]["stream"] == dict.fromkeys(Use.__struct_fields__) | {
        "turns": 1,
        "cost": 0.25,
        "partial": False,
        "estimated": False,
    }
    assert saved["below"] == {"cost": 1.5, "tokens": 7}
    assert saved.keys() == SAVED.keys() | {"printed_ended"}  # which an earlier version lacks
    assert loaded(account) == account
    assert loaded(Account()) == Account()


@given(st.integers(0, 10**15))
def test_every_amount_comes_back(nanos: int) -> None:
    assert to_nanos(to_usd(nanos)) == nanos
