"""What is known of subscriptions, for the next daemon: in the spool together with the runs' shares
of it, and in the ledger."""

import sqlite3
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from ...durable.snapshots import Changes, RetryingStore
from ...host.files import UNDECODABLE
from ...storage.ledger import Ledger
from .feature import SAVED
from .windows import Subscription


def changes(subscriptions: Iterable[Subscription]) -> Changes:
    """Return what to save of them, together with the next snapshots: a growth of a window is
    divided among runs, and must not be divided twice."""
    return {f"{SAVED}{each.key}": msgspec.msgpack.encode(each) for each in subscriptions}


class SubscriptionBooks(Struct, frozen=True):
    store: RetryingStore
    ledger: Ledger
    trouble: Callable[[str], None]

    def record(self, subscription: Subscription) -> None:
        known = msgspec.json.encode(subscription).decode()
        self.ledger.record_plan(
            subscription.provider, subscription.account, subscription.heard_at, known
        )

    def earlier(self) -> list[Subscription]:
        """Return what earlier daemons knew: of each subscription what is newer, of the spool and
        the ledger."""
        found = {each.key: each for each in self._recorded()}
        for each in self._saved():
            if each.key not in found or each.heard_at >= found[each.key].heard_at:
                found[each.key] = each
        return list(found.values())

    def _saved(self) -> list[Subscription]:
        keys = [key for key in self.store.items if key.startswith(SAVED)]
        return [
            found for key in keys if (found := self.store.decoded(key, Subscription)) is not None
        ]

    def _recorded(self) -> list[Subscription]:
        try:
            rows = self.ledger.records.plans()
        except sqlite3.Error as error:
            self.trouble(
                f"what is known of subscriptions cannot be read from the ledger: {error}; "
                "the spool's copy counts"
            )
            return []
        return [known for row in rows if (known := self._decoded(row)) is not None]

    def _decoded(self, row: str) -> Subscription | None:
        try:
            return msgspec.json.decode(row, type=Subscription)
        except UNDECODABLE as error:
            self.trouble(
                f"a row of the ledger's table plans cannot be read, and is left out: {error}"
            )
            return None
