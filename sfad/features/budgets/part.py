"""The part in a daemon: keeps the books, asks the keeper, shows budgets."""

from collections.abc import Mapping
from typing import assert_never

from ...core.state.access import Peer, Scope
from ...daemon.loop.seam import Heart, OwnState, Part
from ...daemon.server.asker import Asker
from ...durable.snapshots import Changes
from .books import BudgetBooks, SavedCharges
from .drawing import KeeperRequests
from .feature import NAME, BudgetsConfig
from .messages import AskAllowances
from .purses import BudgetPurses
from .showing import metrics_of, states_of
from .told import AllowancesAsked, Charge, Draw


def part(heart: Heart) -> Part:
    purses, keeper, resources = heart.machine.purses(), heart.parts().keeper(), heart.resources
    assert isinstance(purses, BudgetPurses)
    charges = purses.charges

    def keeper_of() -> str | None:
        elsewhere = keeper.enabled and keeper.node != keeper.here
        return (keeper.node or "") if elsewhere else None

    books = BudgetBooks(
        charges.budgets, resources.ledger, resources.timers, heart.feed, resources.log.warning,
        SavedCharges(resources.spool.values), keeper_of,
    )  # fmt: skip
    requests = KeeperRequests(keeper, books, heart.feed, resources.log)

    def follow() -> None:
        books.know(heart.section(NAME, BudgetsConfig))

    def told(what: object) -> None:
        assert isinstance(what, Charge | Draw)
        match what:
            case Charge(scope, name, nanos):
                books.record(scope, name, nanos)
            case Draw():
                requests.draw(what)
            case _:
                assert_never(what)

    def state() -> Changes:
        changes: Changes = {}
        for scope, name in charges.unsaved:
            changes |= books.change(scope, name)
        charges.unsaved.clear()
        return changes

    def ask_allowances(asker: Asker, request: AskAllowances) -> None:
        """Give a node its parts of the budgets that this one keeps."""
        asker.tell(AllowancesAsked(request, keeper.check_here()))

    def status(peer: Peer, scope: Scope) -> Mapping[str, object]:
        return {"budgets": list(states_of(charges, heart.machine.tree, peer, scope))}

    return Part(
        verbs={AskAllowances: ask_allowances}, loaded=follow, reconfigure=follow,
        begin=books.look, told=told, state=OwnState(state), status=status,
        serve=requests.serve, rest=requests.rest, go_on=requests.go_on,
        measured=lambda: metrics_of(charges),
    )  # fmt: skip
