"""What features watch: after an event they look at the runs that it has changed, and at what is
measured of all runs together. They publish what they find, and decide nothing.

Only runs are looked at of which more is known than that they run: of most runs nothing is, from
beginning to end. A feature's half in the core is made when there is something to look at. What it
keeps is its own: it asks for that to be saved, and is given it back by its half in the shell.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from . import commands as c
from . import events as e
from .context import Context
from .state.run import Run


class Watcher(Protocol):
    """A feature's half in the core. It is pure."""

    def look(self, runs: Collection[Run], at: float, *, at_all: bool) -> None:
        """Look at runs that have changed, and with `at_all` at `Context.readings`. Ended ones are
        among them, for the last time."""

    def ending(self, run: Run) -> None:
        """A run that is watched is about to end."""


NewWatcher = Callable[[Context], Watcher | None]
"""`None`: it cannot be made now, and is asked for again."""


class Watching:
    def __init__(self, context: Context, known: Mapping[str, NewWatcher]) -> None:
        """`known`: by the names of features."""
        self._ctx = context
        self._known = known
        self.watchers: dict[str, Watcher] = {}
        """Those that there are."""

    def watcher(self, feature: str) -> Watcher | None:
        """Return that of a feature, and make it if there was nothing to look at so far; `None` if
        it cannot be made now."""
        if feature not in self.watchers and (made := self._known[feature](self._ctx)) is not None:
            self.watchers[feature] = made
        return self.watchers.get(feature)

    def ending(self, run: Run) -> None:
        for watcher in self.watchers.values():
            watcher.ending(run)

    def reminded(self, event: e.Reminded) -> None:
        run = self._ctx.tree.get(event.key) if event.key else None
        runs = [run] if run is not None else []
        self.watchers[event.feature].look(runs, event.at, at_all=not event.key)

    def look(self, outcome: c.Outcome, event: e.Event) -> None:
        """Have features look at what an event has changed."""
        if isinstance(event, e.RunsAdopted):  # one may have saved something of any of them
            self._ctx.watched |= {run.id: run for run in self._ctx.tree}
        runs = self._touched(outcome, event)
        if (runs or self._ctx.measured) and len(self.watchers) < len(self._known):
            for feature in self._known:
                self.watcher(feature)
        at_all = self._ctx.measured or isinstance(event, e.Reconfigured | e.RunsAdopted)
        self._ctx.measured = False
        if runs or at_all:
            for watcher in self.watchers.values():
                watcher.look(runs, event.at, at_all=at_all)
        for run in runs:
            if run.status.terminal:
                self._ctx.watched.pop(run.id, None)

    def _touched(self, outcome: c.Outcome, event: e.Event) -> Collection[Run]:
        """Return what is watched of the runs that an event has changed. The use of a run is also
        that of those above it."""
        watched = self._ctx.watched
        runs = {above.id: above for run in outcome.used.values() for above in run.lineage}
        watched |= {name: run for name, run in runs.items() if not run.status.terminal}
        runs |= {name: run for name, run in outcome.changed.items() if name in watched}
        if isinstance(event, e.OfRun) and event.run in watched:
            runs.setdefault(event.run, watched[event.run])
        return runs.values()
