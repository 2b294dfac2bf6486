from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated

from sfad.protocol.requests.windows import (
    ListSubscriptions,
    SubscriptionInfo,
    SubscriptionList,
    WindowInfo,
)

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import connect
from ..options.limits import moment
from ..options.shared import Json, Socket, flag
from ..showing import table

HELD = 10
"""Runs that wait, and are named to people."""


@app.command(cls=OverFleet)
def plans(
    socket: Socket = None,
    json: Json = False,
    forecast: Annotated[bool, flag("Also when each window is empty at the present rate")] = False,
) -> None:
    """Show the windows of subscriptions: how much is used, when they reset, and which runs wait
    for that.

    They are known from the replies to model calls that pass the gateway, and from Codex's
    session files; nothing is asked for. A window is unknown (-) after its reset, until the next
    reply tells of it. AGENTS MAY is what `plans.keep` and `plans.keep_week` of the config leave
    to agents; what you use beside sfad counts too. `list --wide`, `info` and `summary` show
    each run's share.
    """
    with connect(socket) as client:
        found = client.call(ListSubscriptions(id=0), SubscriptionList)
        nodes = client.fleet.nodes if client.fleet is not None else None
    if json:
        of_fleet = {"nodes": nodes, "unanswered": sorted(found.unanswered)}
        output.print_json({"accounts": found.accounts} | (of_fleet if nodes is not None else {}))
    else:
        show(found.accounts, forecast=forecast)


def show(accounts: Sequence[SubscriptionInfo], *, forecast: bool) -> None:
    if not accounts:
        output.note(
            "no subscription is known: none of the replies so far, "
            "through the gateway or in Codex's session files, told of one"
        )
    else:
        now = datetime.now(UTC)
        print(
            "\n\n".join("\n".join(_lines(account, now, forecast=forecast)) for account in accounts)
        )


def _lines(account: SubscriptionInfo, now: datetime, *, forecast: bool) -> Iterator[str]:
    plan = [output.plain(account.plan_type)] if account.plan_type else []
    status = [output.plain(account.status)] if account.status else []
    heard = f"heard {output.age(account.heard_at, now)} ago"
    name = f"{account.provider} {output.plain(account.account)}{_owner(account)}"
    yield f"{name}: {', '.join([*plan, *status, heard])}"
    header = ["WINDOW", "USED", "AGENTS MAY", "RESETS", *(["EMPTY"] if forecast else [])]
    yield from table.drawn(
        header, [_row(window, now, forecast=forecast) for window in account.windows]
    ).splitlines()
    if forecast:
        yield from (
            _forecast(window, now) for window in account.windows if window.empty_at is not None
        )
    if account.on_credits:
        yield "credits pay for calls now, because a window is used up"
    if told := _beyond(account):
        yield f"beyond the windows: {told}"
    if account.held:
        yield f"{_held(account.held)} until the reset"


def _owner(account: SubscriptionInfo) -> str:
    if account.user == output.own_user():
        return ""
    return f" of {output.plain(account.user)}" if account.user is not None else " of the operator"


def _beyond(account: SubscriptionInfo) -> str:
    """Return what an account has beyond its windows."""
    found = []
    if account.credits not in (None, "0", ""):
        found.append(f"credits: {output.plain(account.credits)}")
    if account.banked_resets:
        found.append(f"banked resets: {account.banked_resets}")
    return ", ".join(found)


def _row(window: WindowInfo, now: datetime, *, forecast: bool) -> list[str]:
    used = "-" if window.used_ratio is None else f"{100 * window.used_ratio:.0f} %"
    refuses = " (refused)" if window.rejected else ""
    resets = (
        "-"
        if window.resets_at is None
        else f"{moment(window.resets_at, now)}, in {output.until(window.resets_at, now)}"
    )
    empty = "-" if window.empty_at is None else moment(window.empty_at, now)
    cells = [
        output.plain(window.window),
        f"{used}{refuses}",
        f"{100 * (1 - window.keep_ratio):.0f} %",
        resets,
    ]
    return [*cells, *([empty] if forecast else [])]


def _forecast(window: WindowInfo, now: datetime) -> str:
    assert window.empty_at is not None
    return (
        f"at this rate the {output.plain(window.window)} window is "
        f"empty at {moment(window.empty_at, now)}"
    )


def _held(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - HELD} more" if len(runs) > HELD else ""
    return f"{', '.join(runs[:HELD])}{more} {'waits' if len(runs) == 1 else 'wait'}"
