"""Runs that execute on other machines (`Run.remote`), and runs of other machines that execute here
(`Run.lease`): a feature's half in the core, which is pure.
"""

from .state.run import Run
from .state.tree import Remembered


class Elsewhere:
    """There are no such runs: that of a feature takes its place at the first request for one, or
    where an earlier daemon has left one."""

    def share_out(self, run: Run) -> None:
        """Decide what a run that is to execute elsewhere takes out of its tree. Raise `Invalid`."""

    def admitted(self, run: Run) -> None:
        """One of these runs was admitted."""

    def heard(self, run: Run, what: object, at: float) -> None:
        """Something was heard of one: see `events.HeardOf`."""

    def lease_due(self, run: Run, at: float) -> None:
        """`Timer.LEASE` of one has fired."""

    def never_sent(self, run: Run) -> None:
        """One ends that was never sent to another machine."""

    def limits_of(self, _run: Run) -> str:
        """Return how a person changes the limits of one that executes elsewhere, in words."""
        return ""

    def adopt(self, _one: Remembered, _at: float) -> bool:
        """Continue with one of an earlier daemon that executes elsewhere. Return whether there is
        anything to go on with."""
        return False

    def expect(self, run: Run) -> None:
        """Continue with one that was granted from elsewhere."""
