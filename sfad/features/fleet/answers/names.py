"""What runs are called in the fleet, NODE/ID, and replies of a node with these names."""

import re
from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from ....protocol import messages as m
from ....protocol.types import AlertState, Event, FleetPlace, Hold, RunInfo

R = TypeVar("R", bound=m.Reply)

_WORD = re.compile(r"(?<= )([a-z])([0-9a-v]+)(?![\w/])")


class Names:
    """Of one client. A run that one node has granted to another is told of by both, and has the
    name that the first has given it. That one says where the run executes, and how it has ended;
    what it does meanwhile, the other knows better."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], FleetPlace] = {}
        """Of runs that another node has granted, by the node where they execute."""
        self._granted: dict[str, tuple[str, str, int] | None] = {}
        """Of runs that a node has granted, by their names: the node where each executes, its id
        there, and how many attempts it has had; `None` if it has ended."""

    def learn(self, node: str, runs: Iterable[RunInfo]) -> None:
        self._given |= {
            (node, run.id): run.fleet for run in runs if run.fleet is not None and run.fleet.giver
        }
        self._granted |= {
            f"{node}/{run.id}": None
            if run.status.terminal
            else (run.fleet.node, run.fleet.run, run.attempts)
            for run in runs
            if run.fleet is not None and run.fleet.node
        }

    def forget(self, node: str) -> None:
        """Forget what a node has told, because it tells all anew."""
        self._given = {key: place for key, place in self._given.items() if key[0] != node}
        self._granted = {
            name: place for name, place in self._granted.items() if name.rpartition("/")[0] != node
        }

    def of(self, node: str, run_id: str) -> str:
        """Return the name of a run by its id on a node."""
        given = self._given.get((node, run_id))
        return given.id if given is not None else f"{node}/{run_id}"

    def is_told_by_another(self, node: str, run: RunInfo) -> bool:
        """Return whether another node than this one knows better about the run."""
        place = run.fleet
        if place is None:
            return False
        if place.giver is not None and place.id in self._granted:
            granted = self._granted[place.id]
            # it has ended, or has begun again elsewhere
            return granted is None or granted[:2] != (node, run.id)
        live = place.node is not None and not run.status.terminal
        return live and (place.node, place.run) in self._given

    def run(self, node: str, run: RunInfo) -> RunInfo:
        """Return the run as the fleet knows it. `node`: which tells of it."""
        own, root = self._given.get((node, run.id)), self._given.get((node, run.root_id))
        place = run.fleet or FleetPlace()
        return replace(
            run,
            id=own.id if own is not None else f"{node}/{run.id}",
            root_id=root.root if root is not None else f"{node}/{run.root_id}",
            parent_id=own.parent
            if own is not None
            else run.parent_id and self.of(node, run.parent_id),
            attempts=max(run.attempts, self._attempts(own)),
            continues=run.continues and self.of(node, run.continues),
            continued_by=run.continued_by and self.of(node, run.continued_by),
            holds=tuple(self._hold(node, hold) for hold in run.holds),
            fleet=place if place.node is not None else replace(place, node=node),
        )

    def _attempts(self, given: FleetPlace | None) -> int:
        granted = self._granted.get(given.id) if given is not None else None
        return granted[2] if granted is not None else 0

    def runs(self, node: str, runs: Iterable[RunInfo]) -> list[RunInfo]:
        """Learn of the runs of a node, and return them as the fleet knows them."""
        runs = list(runs)
        self.learn(node, runs)
        return [self.run(node, run) for run in runs]

    def _hold(self, node: str, hold: Hold) -> Hold:
        """Return a hold whose command works on other nodes, too."""

        def name(found: re.Match[str]) -> str:
            # an id, and no verb: its letter tells how many digits follow
            is_id = len(found[2]) == ord(found[1]) - ord("a") + 1
            return self.of(node, found[0]) if is_id else found[0]

        if hold.command is None:
            return hold
        return replace(hold, command=_WORD.sub(name, hold.command))

    def event(self, node: str, event: Event) -> Event:
        return replace(event, node=node, run_id=event.run_id and self.of(node, event.run_id))

    def alert(self, node: str, alert: AlertState) -> AlertState:
        return replace(alert, run_id=alert.run_id and self.of(node, alert.run_id))

    def reply(self, node: str, reply: R) -> R:
        """Return an answer of a node about its runs with the names that they have in the fleet."""
        match reply:
            case m.RunReply():
                return replace(reply, run=self.runs(node, [reply.run])[0])
            case m.RunList():
                return replace(reply, runs=self.runs(node, reply.runs))
            case m.Selected():
                return replace(reply, runs=[self.of(node, run) for run in reply.runs])
            case m.Stopped():
                return replace(
                    reply,
                    stopped=[self.of(node, run) for run in reply.stopped],
                    ended=[self.of(node, run) for run in reply.ended],
                    survivors=[
                        replace(each, run_id=self.of(node, each.run_id)) for each in reply.survivors
                    ],
                )
            case m.EventPage():
                return replace(reply, events=[self.event(node, each) for each in reply.events])
            case m.EventPush():
                return replace(reply, event=self.event(node, reply.event))
            case _ if isinstance(run := getattr(reply, "run", None), str):
                return replace(reply, run=self.of(node, run))
            case _:
                return reply
