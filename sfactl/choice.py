"""Verbs about several runs: which runs a command line means, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sfad.protocol.messages import Select, Selected

from . import exits, output
from .connection import Client, DaemonError
from .options import Option, Parameter, pair

CHOICE: tuple[Parameter, ...] = (
    Option(("--all",), "everything", "Every live run that you may see"),
    Option(("--name",), "name", "Live runs of this name, or of one of several", "NAME", many=True, complete="name"),
    Option(
        ("--label",), "label", "Live runs with this label; of one key, any of the values given", "K=V", many=True, complete="label"
    ),
)
"""For verbs that choose among the live runs."""


class Choice(NamedTuple):
    """What the command line says of the runs it means."""

    verb: str
    runs: Sequence[str]
    everything: bool = False
    name: Sequence[str] = ()
    label: Sequence[str] = ()

    @property
    def labels(self) -> dict[str, str | list[str]]:
        """`--label`, by key. Raises `UsageError`."""
        return labels(self.label)

    def check(self) -> None:
        """Raise `UsageError` if it says nothing, or too much."""
        if not (self.runs or self.everything or self.name or self.label):
            raise exits.UsageError("say which runs: ids or names, --all, --name or --label")
        if self.everything and (self.runs or self.name or self.label):
            raise exits.UsageError("--all means every run: give it alone, or leave it out")

    def each(self, client: Client, act: Callable[[str], object]) -> int:
        """Do `act` with each run that is meant. Name each run that fails, do the rest, and return the worst exit code."""
        chooses = self.everything or self.name or self.label
        # the requests that follow resolve what is named themselves
        runs, code = self.without_failures(client) if chooses else (self.runs, exits.ExitCode.DONE)
        if len(runs) == 1 == len(self.runs):
            act(runs[0])
            return code
        if not (runs or self.runs):
            output.note(f"nothing to {self.verb}")
        return exits.worst([code, *(_done(run, act) for run in runs)])

    def without_failures(self, client: Client) -> tuple[list[str], int]:
        """Return the ids of the runs that are meant, and the worst exit code of the others, each of which is named."""
        number, runs = client.next_id(), list(self.runs)
        name = list(self.name) or None
        request = Select(id=number, verb=self.verb, runs=runs, everything=self.everything, name=name, labels=self.labels)
        found = client.call(request, Selected)
        return found.runs, exits.worst([_failed(each.run, DaemonError(each.code, each.message)) for each in found.failed])


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


def labels(texts: Sequence[str]) -> dict[str, str | list[str]]:
    """`K=V` texts as a request has them: several values of one key are a list, of which either will do. Raises `UsageError`."""
    found: dict[str, list[str]] = {}
    for text in texts:
        key, value = pair("--label", text)
        found.setdefault(key, []).append(value)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}
