"""Requests about runs that are named NODE/ID, and the names of the fleet in their answers: for `top` and the console."""

from collections.abc import Iterable
from typing import TypeVar

from sfad.protocol import messages as m
from sfad.protocol.structs import replace
from sfad.protocol.types import ErrorCode, FleetPlace, RunInfo

from .connection import DaemonError, connect
from .exits import UsageError
from .fleet import Fleet, Names

R = TypeVar("R", bound=m.Reply)

_READ = m.Info | m.List | m.ListCalls | m.Events


class FleetCalls:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.names = Names()

    def call(self, request: m.Request, expected: type[R]) -> R:
        """Ask the node that decides about the run of the request; without a run, this one. Raise `Quit`, `OSError`."""
        try:
            return self._asked(request, expected, "info" if isinstance(request, _READ) else str(request.__struct_config__.tag))
        except DaemonError as error:
            if not isinstance(request, m.Resume) or error.error is not ErrorCode.WRONG_STATE:
                raise
        return self._asked(request, expected, "info")  # a limit has paused it, where it executes

    def _asked(self, request: m.Request, expected: type[R], verb: str) -> R:
        node = self._fleet.own
        field = next((name for name in ("run", "runs", "root") if getattr(request, name, None)), None)
        if field is not None:
            handle = getattr(request, field)
            node, run = self._fleet.find(handle[0] if field == "runs" else handle, verb)
            request = replace(request, **{field: [run] if field == "runs" else run})
        elif isinstance(request, m.Spawn) and request.continues is not None:
            run = self._here(request.continues.run)
            request = replace(request, continues=replace(request.continues, run=run))
        return self.named(node, self.ask(node, request, expected))

    def ask(self, node: str, request: m.Request, expected: type[R]) -> R:
        """Return the answer of a node, with its own names."""
        with connect(self._fleet.place(node)) as client:
            return client.call(request, expected)

    def _here(self, handle: str) -> str:
        """Return the id of a run that this node can continue."""
        node, run = self._fleet.find(handle, "continue")
        if node != self._fleet.own:
            raise UsageError(f"{handle} has its session on node {node}; continue it there: sfactl continue {run}")
        return run

    def named(self, node: str, reply: R) -> R:
        """Return an answer of a node with the names that runs have in the fleet."""
        if isinstance(reply, m.RunReply):
            return replace(reply, run=self.runs(node, [reply.run])[0])
        if isinstance(reply, m.RunList):
            return replace(reply, runs=self.runs(node, reply.runs))
        if isinstance(reply, m.Stopped):
            return replace(
                reply,
                stopped=[self.names.of(node, run) for run in reply.stopped],
                ended=[self.names.of(node, run) for run in reply.ended],
                survivors=[replace(each, run_id=self.names.of(node, each.run_id)) for each in reply.survivors],
            )
        return reply

    def runs(self, node: str, runs: Iterable[RunInfo]) -> list[RunInfo]:
        """Return the runs of a node as the fleet knows them."""
        runs = list(runs)
        self.names.learn(node, runs)
        return [self._run(node, run) for run in runs]

    def _run(self, node: str, run: RunInfo) -> RunInfo:
        named = self.names.named(node, run)
        if run.continues or run.continued_by:  # on the same node
            others = {"continues": run.continues, "continued_by": run.continued_by}
            named = replace(named, **{key: other and self.names.of(node, other) for key, other in others.items()})
        return on_node(node, named)


def on_node(node: str, run: RunInfo) -> RunInfo:
    """Return the run with the node where it executes."""
    if run.fleet is None or run.fleet.node is None:
        return replace(run, fleet=replace(run.fleet or FleetPlace(), node=node))
    return run
