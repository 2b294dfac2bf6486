"""Money that several trees spend, beside the accounts of a run and of those above it: a feature's
half in the core, which is pure. What runs use is charged to purses, and is bounded by what these
have left.

Amounts are in nano-dollars (`state.money`).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from . import events as e
from .state.account import NOWHERE, ChargedTo
from .state.run import Run


class Purse(Protocol):
    """A purse as a model call sees it."""

    @property
    def what(self) -> str:
        """What it is, in words."""

    @property
    def left(self) -> int:
        """What is left of it; below 0 if more was charged."""

    @property
    def doubts(self) -> int:
        """What calls under way may cost beyond what they have charged."""

    @property
    def reserved(self) -> int:
        """What was charged and is only reserved."""

    def draws(self, nanos: int) -> bool:
        """Return whether a call waits until more of it is here. `nanos`: how much has to be
        left."""

    def refuse(self, more: int, at: float) -> str:
        """Take the action for a call that finds too little. Return why, in words."""


class Shortage(Struct, frozen=True):
    """A purse with nothing left, as a refusal tells of it. Amounts are in USD."""

    key: str
    """The key of the config that sets how much there is."""
    detail: str
    why: str
    used: float
    allowed: float
    reserved: float | None
    """What is reserved beyond `used`."""
    wait: float | None
    """Seconds until there is money again."""


class Purses:
    """This one has none: that of a feature takes its place when its part is loaded, or for a tree
    that an earlier daemon has paused for money."""

    known: Collection[object] = ()
    """Those that there are. Without any, nothing is asked or told but `look` and `restore`."""
    changed = False
    """Something may have run out, or was given back: `look` is called after the event."""

    def told(self, _ev: e.Told) -> Sequence[e.SpawnRequested | e.ReserveRequested]:
        """Take what the feature's part tells. Return the requests that have waited for it and go
        on."""
        return ()

    def client_gone(self, client: int) -> None:
        """Start nothing for a client that is gone."""

    # ---- who else must agree

    def shortage(self, _user: str, _at: float) -> Shortage | None:
        """Return why no root of a user may start."""
        return None

    def postpones(self, _run: Run, _ev: e.SpawnRequested) -> bool:
        """Return whether a run that is to be placed waits until more is here."""
        return False

    def share_out(self, run: Run) -> None:
        """Bound a run that is to be placed by what is left: all that it may cost is charged in
        advance. Raise `Invalid`."""

    def refuses(self, _run: Run, _ev: e.ReserveRequested) -> bool:
        """Return whether a reservation is not made. It was answered, or waits."""
        return False

    def of(self, _run: Run) -> Iterable[Purse]:
        """Return the purses that bound the model calls of a run."""
        return ()

    def cut(self, _run: Run, _words: str) -> tuple[str, str] | None:
        """Publish that a reply was cut because a purse had no room for more. Return what is told of
        the run, which begins with the `words`, and what follows."""
        return None

    def teams(self, _user: str) -> Collection[str]:
        """Return the teams that have one which a user spends. A member is shown what is
        told of its teams."""
        return ()

    # ---- what they are told

    def charged_to(self, _run: Run) -> ChargedTo:
        """Return what is kept of a reservation, to give back to no other purse what it leaves."""
        return NOWHERE

    def charge(self, run: Run, nanos: int | None, charged_to: ChargedTo | None) -> None:
        """Charge what a run has used; `None`: it costs no other amount. `charged_to`: of the
        reservation that it settles."""

    def close(self, run: Run) -> None:
        """A run ends, and its account is closed."""

    # ---- what follows

    def look(self, _at: float) -> None:
        """Pause or end the live trees of which a purse has run out, and resume those that it has
        paused and need not any more."""
        self.changed = False

    def look_at(self, run: Run, at: float) -> None:
        """Do that for the tree of a run that can spend from now on."""

    def restore(self, run: Run) -> None:
        """Continue with a run of an earlier daemon, which may have paused it. Without the feature a
        person has to resume it."""
        if run.paused is not None:
            run.paused.no_money = None
