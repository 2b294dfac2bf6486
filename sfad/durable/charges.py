"""What budgets were charged, as it is saved in the spool: `charge/SCOPE/NAME`."""

from datetime import datetime

import msgspec
from msgspec import Struct

from .retrying import RetryingStore


class Charged(Struct, frozen=True, array_like=True):
    """What a budget was charged in the period that began then."""

    begins: datetime
    usd: float
    partial: bool = False


class SavedCharges:
    def __init__(self, store: RetryingStore) -> None:
        self._store = store

    def since(self, begins: datetime, scope: str, name: str) -> Charged:
        """Return what is saved of the period that began then."""
        saved = self._store.items.get(f"charge/{scope}/{name}")
        charged = msgspec.msgpack.decode(saved, type=Charged) if saved is not None else None
        return charged if charged is not None and charged.begins == begins else Charged(begins, 0.0)

    def save(self, scope: str, name: str, charged: Charged) -> None:
        """Save it together with the next snapshot: of the run that has used it."""
        self._store.add_to_next({f"charge/{scope}/{name}": msgspec.msgpack.encode(charged)})
