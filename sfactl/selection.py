"""The runs that a command line names or filters, and a request about each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from sfad.protocol.requests.steering import Select, Selected

from . import exits, output
from .connection import Client, DaemonError
from .options import Pair


class RunSelection(Struct, frozen=True):
    """The runs that a command line means."""

    verb: str
    runs: Sequence[str] = ()
    everything: bool = False
    name: Sequence[str] = ()
    label: Sequence[Pair] = ()

    @property
    def filtered(self) -> bool:
        """Whether `--all`, `--name` or `--label` chooses runs."""
        return bool(self.everything or self.name or self.label)

    def checked(self) -> RunSelection:
        """Return self. Raise `UsageError` if it names no run, or `--all` beside others."""
        if not (self.runs or self.filtered):
            raise exits.UsageError("say which runs: ids or names, --all, --name or --label")
        if self.everything and (self.runs or self.name or self.label):
            raise exits.UsageError("--all means every run: give it alone, or leave it out")
        return self

    def each(self, client: Client, act: Callable[[str], object]) -> int:
        """Call `act` with each run. Print an error for each run that fails, continue with the
        others, and return the worst exit code."""
        # The daemon resolves ids and names in the requests of `act`; only options need a request of
        # their own.
        runs, code = (
            self.without_failures(client) if self.filtered else (self.runs, exits.ExitCode.DONE)
        )
        if len(runs) == 1 == len(self.runs):
            act(runs[0])
            return code
        if not (runs or self.runs):
            output.note(f"nothing to {self.verb}")
        return exits.worst([code, *(_done(run, act) for run in runs)])

    def without_failures(self, client: Client) -> tuple[list[str], int]:
        """Return the ids of the runs, and the worst exit code of those that cannot be found or
        used, after an error for each."""
        runs, name = list(self.runs), list(self.name) or None
        request = Select(
            id=0,
            verb=self.verb,
            runs=runs,
            everything=self.everything,
            name=name,
            labels=labels(self.label),
        )
        found = client.call(request, Selected)
        return found.runs, exits.worst(
            [_failed(each.run, DaemonError(each.code, each.message)) for each in found.failed]
        )


def _done(run: str, act: Callable[[str], object]) -> int:
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
