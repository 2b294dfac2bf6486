"""Limits as people write them (`turns=50`, `cost=2.50:warn`), and as they are shown.

Only the form is checked here; the core checks ranges.
"""

from __future__ import annotations

from collections.abc import Callable

from .kinds import COSTS, KINDS, TIMED
from .texts import units
from .types import Action, Limit, LimitKind, LimitState, Reason

ALIASES = {word: kind for kind, spec in KINDS.items() for word in spec.words}
"""Other words for a kind. `max_` before and `_limit` behind them mean nothing, `-` is `_`, and
`maxTurns` is `max_turns`."""
LIMIT_FORM = (
    "KIND=N or KIND=N:ACTION, as in turns=50, time=90s, "
    "cost=2.50:warn, tokens=200k:pause, memory=2G"
)

_NONE_BY_DEFAULT = (
    '"off" for its key in [defaults] of the config means no limit where none is given'
)


def parse_limit(text: str, source: str = "--limit") -> Limit:
    """Return `turns=50` or `cost=2.50:warn` as a limit. Raise `ValueError` with `source`, what is
    wrong, and what is allowed."""
    word, equals, rest = text.partition("=")
    amount, colon, action = rest.partition(":")
    if not (word.strip() and equals and amount.strip()):
        raise ValueError(f"{source}: {text!r} is not a limit: write {LIMIT_FORM}")
    try:
        kind = parse_kind(word)
        if amount.strip().lower() == "off":
            raise ValueError(
                f"a limit of a run cannot be off: {kind}=N:warn only warns, and {_NONE_BY_DEFAULT}"
            )
        threshold, wanted = (
            parse_amount(kind, amount.strip()),
            parse_action(action) if colon else None,
        )
        return Limit(kind=kind, threshold=threshold, action=wanted, source=f"{source} {kind.value}")
    except ValueError as error:
        raise ValueError(f"{source} {text}: {error}") from None


def parse_kind(word: str) -> LimitKind:
    """Return the kind that a word or one of its `ALIASES` means. Raise `ValueError` with the kinds
    there are."""
    plain = units.in_snake_case(word.strip()).replace("-", "_")
    plain = plain.removeprefix("max_").removesuffix("_limit")
    if plain in ALIASES:
        return ALIASES[plain]
    try:
        return LimitKind(plain)
    except ValueError:
        raise ValueError(
            f"unknown limit {word.strip()!r}; choose from: {', '.join(LimitKind)}"
        ) from None


def parse_action(word: str) -> Action:
    """Return the action that a word means. Raise `ValueError` with the actions there are."""
    try:
        return Action(word.strip().lower().replace("-", "_"))
    except ValueError:
        raise ValueError(
            f"unknown action {word.strip()!r}; choose from: {', '.join(Action)}"
        ) from None


def parse_amount(kind: LimitKind, text: str) -> float:
    """Return a threshold in the unit of its kind. Raise `ValueError` with the forms that the kind
    takes."""
    read, forms = _AMOUNTS[KINDS[kind].unit]
    try:
        return float(read(text))
    except ValueError:
        raise ValueError(f"{text!r} is not {forms.format(KINDS[kind].counts)}") from None


_AMOUNTS: dict[str, tuple[Callable[[str], float], str]] = {
    "s": (units.parse_duration, f"a duration: {units.DURATION_FORMS}, like 90s"),
    "": (units.parse_count, f"a count of {{}}: {units.COUNT_FORMS}, like 200k"),
    "USD": (units.parse_usd, units.USD_FORM),
    "bytes": (units.parse_size, f"a size: {units.SIZE_FORMS}, like 2G"),
    "%": (units.parse_percent, units.PERCENT_FORM),
    "cores": (units.parse_decimal, "a number of cores, like 1.5"),
}
"""How amounts of a unit are read, and what may be written."""


def format_limit(limit: Limit | LimitState) -> str:
    """Return a limit for people: `cost 2.50 USD → warn`, `time 2m`, `memory 2 GiB`."""
    follows = KINDS[limit.kind].instead or (limit.action.value if limit.action else "")
    action = f" → {follows}" if follows else ""
    return f"{limit.kind.value} {format_amount(limit.kind, limit.threshold)}{action}"


def format_excess(reason: Reason | None, *, tree: bool) -> str:
    """Return what the message of a breach leaves out, in brackets: by how much, and with `tree`
    that descendants count. Empty for another reason."""
    if reason is None or reason.limit_kind not in set(LimitKind) or not reason.exceeded_by:
        return ""
    kind = LimitKind(reason.limit_kind)
    if kind is LimitKind.TIME and reason.exceeded_by < 0.1:
        return ""  # the clock was read a moment after the limit
    over = "that would have been " if reason.refused else ""
    counted = "; what its descendants used counts too" if tree else ""
    return f" ({over}{format_amount(kind, reason.exceeded_by)} over{counted})"


def format_amount(kind: LimitKind, amount: float, *, unit: bool = True) -> str:
    """Return an amount of a kind for people: `2.50 USD`, `2m`, `2 GiB`, `1.5 cores`, `200000`.
    Without `unit`, leave out that of money and cores, as for the first number of `0.45 of 0.30
    USD`."""
    if kind in TIMED:
        return units.format_duration(round(amount, 1) if amount >= 1 else round(amount, 3))
    if kind in COSTS:
        return f"{units.format_usd(amount)} USD" if unit else units.format_usd(amount)
    if KINDS[kind].unit == "bytes":
        return units.format_size(amount)
    if kind is LimitKind.CPU and unit:
        return f"{amount:g} {'core' if amount == 1 else 'cores'}"
    if KINDS[kind].unit == "%":
        return f"{round(amount, 1):g} %"
    return f"{amount:.15g}"
