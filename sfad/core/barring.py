"""What may hold calls and roots beside limits and purses, until a time that it knows: a feature's
half in the core, which is pure.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Literal, Protocol

from ..protocol.requests.gateway import AdmitCall, EndCall
from . import events as e
from .state.run import Run


class Bar(Protocol):
    """Why a call, or a root, has to wait."""

    @property
    def action(self) -> Literal["hold", "refuse"]:
        """What becomes of a call."""

    @property
    def message(self) -> str:
        """Why, in words."""

    def hold(self, run: Run, at: float) -> None:
        """Pause a run until its call may be made."""

    def queue(self, root: Run, at: float) -> None:
        """Let a root wait that was not started. Once it may start, it is in `Context.released`."""


class Barrier:
    """This one bars nothing: that of a feature takes its place at the first model call, or for a
    run that an earlier daemon has held."""

    known: Collection[object] = ()
    """What it knows that may bar something."""
    held: Collection[object] = ()
    """Runs that it holds. While there are any, `forget` is called."""

    def tell_time(self, at: float, time: datetime) -> None:
        """Learn which moment of the calendar `at` is."""

    def seen(self, ev: e.WindowsSeen) -> None:
        """Take what a reply tells."""

    def due(self, ev: e.Reminded) -> None:
        """The time has come for which it has asked."""

    def bar(self, _run: Run, _asked: AdmitCall, _at: float) -> Bar | None:
        """Return why a call has to wait, or is refused."""
        return None

    def bar_root(self, _root: Run, _at: float) -> Bar | None:
        """Return why a root has to wait."""
        return None

    def holds(self, _api: str) -> bool:
        """Return whether calls in this format wait where the provider itself refuses one."""
        return False

    def call_ended(self, run: Run, call: EndCall, cost: int | None, at: float) -> None:
        """Count what a call has cost, in nano-dollars."""

    def freeze_if_idle(self, run: Run, at: float) -> None:
        """Freeze what waits of a run's lineage and has no calls under way: a reply must not be
        frozen in its middle."""

    def look(self, at: float) -> None:
        """Let go on what waits for nothing any more: the config is another, or runs of an earlier
        daemon were adopted."""

    def forget(self, ended: Iterable[Run], at: float) -> None:
        """Runs have ended."""

    def restore(self, run: Run, _at: float) -> None:
        """Continue with a run of an earlier daemon, which may have held it."""
        run.window_hold = None
