"""The runs that a command line names or filters, and a request about each of them."""

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from sfad.protocol.requests.steering import Select, Selected

from .. import exits, output
from ..connecting import connection
from ..connecting.connection import Client, DaemonError
from .shared import (
    AllListed,
    AllLive,
    Json,
    Labels,
    LiveLabels,
    LiveNames,
    LiveRuns,
    Names,
    Pair,
    Runs,
    Socket,
)

_CALL = re.compile(r"call-[0-9]{1,9}")


class RunSelection(Struct, frozen=True):
    """Runs that are named, and how to ask about them: the options of a verb about runs."""

    runs: Runs
    socket: Socket = None
    json: Json = False
    everything: bool = False
    name: list[str] = []
    label: list[Pair] = []

    @property
    def filtered(self) -> bool:
        """Whether `--all`, `--name` or `--label` chooses runs."""
        return bool(self.everything or self.name or self.label)

    def check(self) -> None:
        """Raise `UsageError` for a selection that names no run, or `--all` beside others."""
        if not (self.runs or self.filtered):
            raise exits.UsageError("say which runs: ids or names, --all, --name or --label")
        if self.everything and (self.runs or self.name or self.label):
            raise exits.UsageError("--all means every run: give it alone, or leave it out")

    def each(
        self,
        verb: str,
        act: Callable[[Client, str], object],
        connect: Callable[[str | None], Client] = connection.connect,
    ) -> int:
        """Call `act` with each run. Print an error for each run that fails, continue with the
        others, and return the worst exit code. Raise `Quit`."""
        self.check()
        with connect(self.socket) as client:
            return self.each_of(client, verb, lambda run: act(client, run))

    def each_of(self, client: Client, verb: str, act: Callable[[str], object]) -> int:
        """Do what `each` does, on a connection."""
        # The daemon resolves ids and names in the requests of `act`; only options need a request of
        # their own.
        runs, code = (
            self.without_failures(client, verb)
            if self.filtered
            else (self.runs, exits.ExitCode.DONE)
        )
        if len(runs) == 1 == len(self.runs):
            act(runs[0])
            return code
        if not (runs or self.runs):
            output.note("no run matches")
        return exits.worst([code, *(done(run, act) for run in runs)])

    def without_failures(self, client: Client, verb: str) -> tuple[list[str], int]:
        """Return the ids of the runs, and the worst exit code of those that cannot be found or
        used, after an error for each."""
        request = Select(
            id=0,
            verb=verb,
            runs=list(self.runs),
            everything=self.everything,
            name=list(self.name) or None,
            labels=labels(self.label),
        )
        found = client.call(request, Selected)
        return found.runs, exits.worst(
            [_failed(each.run, DaemonError(each.code, each.message)) for each in found.failed]
        )


class LiveSelection(RunSelection, frozen=True):
    """Live runs that are named or filtered."""

    runs: LiveRuns = []
    socket: Socket = None
    json: Json = False
    everything: AllLive = False
    name: LiveNames = []
    label: LiveLabels = []


class ListedSelection(RunSelection, frozen=True):
    """Runs that are named, or that `list` shows for these filters."""

    runs: Runs = []
    socket: Socket = None
    json: Json = False
    everything: AllListed = False
    name: Names = []
    label: Labels = []


def done(run: str, act: Callable[[str], object]) -> int:
    """Call `act` with a run. Print an error if that fails, and return the exit code."""
    try:
        act(run)
    except DaemonError as error:
        return _failed(run, error)
    return exits.ExitCode.DONE


def _failed(run: str, error: DaemonError) -> int:
    about = "" if run in error.message else f"{run}: "
    output.note(f"sfactl: {about}{output.harmless(error.message)}")
    return error.code


def labels(pairs: Sequence[Pair]) -> dict[str, str | list[str]]:
    """Return labels by key; several values of one key become a list, any of which matches."""
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def one_call(chosen: RunSelection) -> bool:
    """Return whether a run is named and a call of it: `a4 call-1`. Raise `UsageError` for a call
    beside more than that."""
    calls = [word for word in chosen.runs if _CALL.fullmatch(word)]
    if not calls:
        return False
    if len(calls) > 1 or len(chosen.runs) != 2 or chosen.runs[0] in calls or chosen.filtered:
        raise exits.UsageError("name one run and one call of it, as in a4 call-1")
    return True
