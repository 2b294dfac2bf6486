"""The words that a shell completes: runs, names, labels and agents from the daemon, and words that
never change.

The user waits after pressing Tab, so it gives up after `COMPLETION_SECONDS`. It prints nothing if
no daemon is running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from sfad.protocol.known import AGENTS, KNOWN_PROGRAMS, METERS, PROFILES
from sfad.protocol.requests.daemon import DaemonInfo, DaemonStatus
from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.requests.starting import AgentList, Agents
from sfad.protocol.types import Action, LimitKind, RunInfo, Status

from .. import verbs
from ..connecting.bounded import bounded
from ..connecting.connection import connect
from ..exits import Quit
from ..output import plain


class Late(Exception):
    """The time is over."""


COMPLETION_SECONDS = 0.5
"""Seconds to wait for the daemon."""
QUEUED = 100
"""Queued runs that are offered. There may be thousands, of which a person looks for none."""
Candidate = tuple[str, str]
"""A word, and the description that the shell shows."""


def candidates(kind: str, begun: str, socket: str | None = None) -> list[Candidate]:
    """Return the words of a kind of `CANDIDATES` that begin with `begun`, except those that the
    daemon does not send in time."""
    found: dict[str, str] = {}
    try:
        with bounded(COMPLETION_SECONDS, Late()):
            for word, about in CANDIDATES[kind](socket):
                found.setdefault(word, about)
    except (Quit, OSError, Late):
        pass  # a shell would show the error in the middle of the command line
    return [
        (word, plain(about))
        for word, about in found.items()
        if word.startswith(begun) and _is_word(word)
    ]


def _is_word(text: str) -> bool:
    """Return whether a person may be offered this text: a run chose it, and it must not be an
    option or steer the terminal."""
    return text.isprintable() and not text.startswith("-")


def _listed(socket: str | None, status: Sequence[Status] = ()) -> list[RunInfo]:
    with connect(socket, tell=False) as client:
        wanted = List(id=0, status=list(status), queued=QUEUED, limits=False)
        return client.call(wanted, RunList).runs[::-1]


def _live(socket: str | None) -> list[RunInfo]:
    return _listed(socket, status=[status for status in Status if not status.terminal])


def _handles(runs: Iterable[RunInfo]) -> Iterator[Candidate]:
    """Yield ids, and names with the run that the daemon would take each for. `runs`: the newest
    first."""
    runs = list(runs)
    named: dict[str, RunInfo] = {}
    for run in sorted(runs, key=lambda run: (run.status.terminal, run.started_at is None)):
        if not run.status.rejected:
            named.setdefault(run.name, run)
    for run in runs:
        yield run.id, f"{run.name}, {run.status.value}"
        if named.get(run.name) is run:
            yield run.name, f"{run.id}, {run.status.value}"


def _types(socket: str | None) -> Iterator[Candidate]:
    yield from ((word, "profile") for word in PROFILES)
    yield from (
        (run.type, "")
        for run in _listed(socket)
        if run.type is not None and run.type not in PROFILES
    )


def _groups(socket: str | None) -> Iterator[Candidate]:
    with connect(socket, tell=False) as client:
        quotas = client.call(DaemonInfo(id=0), DaemonStatus).quotas
    for quota in quotas:
        if quota.key.startswith("groups."):
            yield (
                quota.key.removeprefix("groups.").removesuffix(".slots"),
                f"{quota.used} of {quota.limit}",
            )


def _agents(socket: str | None) -> Iterator[Candidate]:
    try:
        with connect(socket, tell=False) as client:
            found = client.call(Agents(id=0), AgentList).agents
    except Quit:
        yield from ((word, "") for word in AGENTS)
    else:
        yield from ((agent.name, agent.description) for agent in found)


def _fixed(*words: str) -> Callable[[str | None], Iterator[Candidate]]:
    return lambda _socket: ((word, "") for word in words)


CANDIDATES: dict[str, Callable[[str | None], Iterable[Candidate]]] = {
    "run": lambda socket: _handles(_listed(socket)),
    "live": lambda socket: _handles(_live(socket)),
    "limit": lambda socket: [
        *((f"{kind}=", "limit") for kind in LimitKind),
        *_handles(_live(socket)),
    ],
    "name": lambda socket: ((run.name, "") for run in _listed(socket)),
    "channel": lambda socket: ((run.channel, "") for run in _listed(socket)),
    "model": lambda socket: ((run.model, "") for run in _listed(socket) if run.model is not None),
    "user": lambda socket: ((run.user, "") for run in _listed(socket)),
    "label": lambda socket: (
        (f"{key}={value}", "") for run in _listed(socket) for key, value in run.labels.items()
    ),
    "type": _types,
    "group": _groups,
    "agent": _agents,
    "status": _fixed("live", *Status),
    "meter": _fixed(*METERS),
    "action": _fixed(*Action),
    "kind of limit": _fixed(*(f"{kind}=" for kind in LimitKind)),
    "shim": _fixed("install", "list", "remove"),
    "program": _fixed(*KNOWN_PROGRAMS),
    "shell": _fixed("bash", "zsh", "fish"),
    "verb": lambda _socket: ((verb, verbs.SUMMARIES[verb]) for verb in verbs.everything()),
}
"""By the word that `options.completing` is given."""
