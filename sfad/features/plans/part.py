"""The part in a daemon: what is shown and saved, and what nodes of a fleet tell each
other."""

from collections.abc import Iterable, Mapping
from datetime import datetime

import trio

from ...core import events as e
from ...core.state.access import Peer, Scope
from ...daemon.loop.seam import Heart, OwnState, Part, Sharing
from ...durable.snapshots import Changes
from ...host.clock import wall_clock
from ...protocol.requests.gateway import SeeWindows
from ...protocol.requests.windows import SharedWindows
from .barrier import Subscriptions
from .saved import SubscriptionBooks, changes
from .showing import accounts_of
from .windows import Subscription


def part(heart: Heart) -> Part:
    subscriptions = heart.machine.barrier()
    assert isinstance(subscriptions, Subscriptions)
    resources = heart.resources
    books = SubscriptionBooks(resources.spool.values, resources.ledger, resources.log.warning)
    subscriptions.known_before(books.earlier(), trio.current_time(), wall_clock().astimezone())
    unrecorded: list[Subscription] = []

    def status(_peer: Peer, scope: Scope) -> Mapping[str, object]:
        return {"plans": list(accounts_of(subscriptions, scope, wall_clock().timestamp()))}

    def unsaved() -> Changes:
        found = list(subscriptions.unsaved.values())
        subscriptions.unsaved.clear()
        unrecorded.extend(found)
        return changes(found)

    def saved() -> None:
        for each in unrecorded:
            books.record(each)
        unrecorded.clear()

    def shared() -> list[SharedWindows]:
        return [each.shared() for each in subscriptions.known.values()]

    def heard(told: Iterable[SharedWindows]) -> None:
        """Take what another node knows better."""
        now = wall_clock().astimezone()
        for one in filter(subscriptions.is_news, told):
            # the clocks of nodes differ: what is told from the future would hide what is heard next
            time = min(now, datetime.fromtimestamp(one.heard_at, now.tzinfo))
            seen = SeeWindows(
                id=0, run="", provider=one.provider, time=time.timestamp(), login=one.login,
                organization=one.organization, plan_type=one.plan_type, status=one.status,
                windows=one.windows,
            )  # fmt: skip
            at = trio.current_time()
            heart.feed(e.WindowsSeen(at, time, seen, one.uid, now.timestamp()))

    return Part(state=OwnState(unsaved, saved), sharing=Sharing(shared, heard), status=status)
