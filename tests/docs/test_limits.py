"""Compare the tables of limits.md with the code."""

from __future__ import annotations

import re

from sfad.core.state.limits import most_of
from sfad.core.state.policy import DEFAULT_LIMITS, Policy
from sfad.protocol.kinds import KINDS
from sfad.protocol.known import PROFILES
from sfad.protocol.limits import parse_amount, parse_kind
from sfad.protocol.types import Action, LimitKind
from tests.docs.pages import rows, sections, text_of

PAGE = sections(text_of("limits.md"), "##")


def table(title: str) -> list[list[str]]:
    """Return the rows of a section's table, without its head."""
    return list(rows(PAGE[title]))[1:]


def words(cell: str) -> list[str]:
    """Return the words in backquotes in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def by_kind() -> dict[LimitKind, list[str]]:
    """Return the rows of the table of kinds."""
    return {LimitKind(word): row for row in table("Kinds") for word in words(row[0])}


def amount(kind: LimitKind, text: str) -> float:
    """Return a number of the table in the unit of a threshold."""
    plain = text.removesuffix(" each").removesuffix(" a tree")
    return parse_amount(kind, plain.replace(" ", "").removesuffix("iB"))


def test_every_kind_once_and_in_order() -> None:
    assert [LimitKind(word) for row in table("Kinds") for word in words(row[0])] == list(LimitKind)


def test_ranges_and_whose_use_counts() -> None:
    for kind, (_, _, whose, _, allowed, *_) in by_kind().items():
        assert whose == KINDS[kind].scope, kind
        least, _, most = allowed.partition(" to ")
        assert amount(kind, least.removesuffix(" or more")) == KINDS[kind].least, kind
        key = KINDS[kind].most
        if kind is LimitKind.PLAN:
            assert float(most) == most_of(kind, Policy())
            continue
        bounds = {LimitKind.TIME: "1 h", LimitKind.OUTPUT: "1 GiB"}
        bound = bounds.get(kind) or (f"{getattr(Policy().limits, key):g}" if key else "")
        shown = f"`limits.{key}` ({bound})" if key else ""
        assert most == shown, kind
    assert Policy().limits.max_time == 3600


def test_defaults() -> None:
    for kind, (_, _, _, default, *_) in by_kind().items():
        known = DEFAULT_LIMITS.get(kind)
        assert (None if default == "off" else amount(kind, default)) == (
            known.threshold if known else None
        ), kind


def test_actions() -> None:
    assert {Action(word) for row in table("Actions") for word in words(row[0])} == set(Action)
    told = PAGE["Actions"]
    assert f"`limits.pause_max` ({Policy().limits.pause_max / 3600:g} h)" in told
    assert f"`limits.approval_timeout` ({Policy().limits.approval_timeout / 60:g} min)" in told


def test_profiles() -> None:
    shown = {row[0]: row[1:] for row in table("Profiles")}
    assert shown == {
        name: [
            f"{profile.turns}",
            f"{profile.time / 60:g} min",
            f"{profile.cost:.2f}",
            profile.action.value,
        ]
        for name, profile in PROFILES.items()
    }


def test_aliases_that_are_named() -> None:
    [line] = re.findall(
        r"Singulars and the words of agent frameworks are understood: (.+?)\. ",
        PAGE["Writing limits"],
        re.DOTALL,
    )
    assert [parse_kind(word) for word in words(line)]
