"""Requests about runs that are named NODE/ID, and the names of the fleet in their answers: for
`top` and the console.

Summaries of several nodes become one here, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from sfad.protocol import messages as m
from sfad.protocol.requests.summary import Group, Summary
from sfad.protocol.types import ErrorCode, FleetPlace, RunInfo, Status, WindowShare

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
        """Ask the node that decides about the run of the request; without a run, this one. Raise
        `Quit`, `OSError`."""
        try:
            return self._asked(
                request,
                expected,
                "info" if isinstance(request, _READ) else str(request.__struct_config__.tag),
            )
        except DaemonError as error:
            if not isinstance(request, m.Resume) or error.error is not ErrorCode.WRONG_STATE:
                raise
        return self._asked(request, expected, "info")  # a limit has paused it, where it executes

    def _asked(self, request: m.Request, expected: type[R], verb: str) -> R:
        node = self._fleet.own
        field = next(
            (name for name in ("run", "runs", "root") if getattr(request, name, None)), None
        )
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
            raise UsageError(
                f"{handle} has its session on node {node}; continue it there: sfactl continue {run}"
            )
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
                survivors=[
                    replace(each, run_id=self.names.of(node, each.run_id))
                    for each in reply.survivors
                ],
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
            named = replace(
                named,
                **{key: other and self.names.of(node, other) for key, other in others.items()},
            )
        return on_node(node, named)


def on_node(node: str, run: RunInfo) -> RunInfo:
    """Return the run with the node where it executes."""
    if run.fleet is None or run.fleet.node is None:
        return replace(run, fleet=replace(run.fleet or FleetPlace(), node=node))
    return run


# ---- Summaries of several nodes as one


GROUPS, COSTLY = 100, 5
"""As many as one node tells."""


def with_node(found: Summary, node: str) -> Summary:
    """Return a node's summary with the node before the ids of its runs."""
    return replace(
        found,
        breaches=[replace(one, run_id=f"{node}/{one.run_id}") for one in found.breaches],
        failed=[replace(one, run_id=f"{node}/{one.run_id}") for one in found.failed],
        costly=[replace(one, run_id=f"{node}/{one.run_id}") for one in found.costly],
        lines=[replace(one, runs=[f"{node}/{run}" for run in one.runs]) for one in found.lines],
    )


def added(found: Sequence[Summary]) -> Summary:
    """Return the summary of all nodes."""
    by_status: Counter[Status] = Counter()
    groups: dict[str | None, Group] = {}
    for one in found:
        by_status.update(one.by_status)
        for group in one.groups:
            before = groups.get(group.key)
            groups[group.key] = group if before is None else _both(before, group)
    return Summary(
        since=min(one.since for one in found),
        until=max(one.until for one in found),
        runs=sum(one.runs for one in found),
        by_status=dict(sorted(by_status.items())),
        cost_usd=_sum(one.cost_usd for one in found),
        tokens=_sum(one.tokens for one in found),
        partial=any(one.partial for one in found),
        at_most=any(one.at_most for one in found),
        groups=sorted(
            groups.values(), key=lambda one: (-(one.cost_usd or 0.0), -one.runs, one.key or "")
        )[:GROUPS],
        breaches=[breach for one in found for breach in one.breaches],
        failed=[failed for one in found for failed in one.failed],
        costly=sorted(
            (costly for one in found for costly in one.costly), key=lambda one: -one.cost_usd
        )[:COSTLY],
        lines=[line for one in found for line in one.lines],
    )


def _both(one: Group, other: Group) -> Group:
    return replace(
        one,
        runs=one.runs + other.runs,
        failed=one.failed + other.failed,
        cost_usd=_sum((one.cost_usd, other.cost_usd)),
        tokens=_sum((one.tokens, other.tokens)),
        partial=one.partial or other.partial,
        at_most=one.at_most or other.at_most,
        plans=_shares((*one.plans, *other.plans)),
    )


def _shares(plans: Iterable[WindowShare]) -> list[WindowShare]:
    found: dict[tuple[str, str, str], WindowShare] = {}
    for each in plans:
        key = each.provider, each.account, each.window
        found[key] = replace(
            each, share=round(each.share + (found[key].share if key in found else 0.0), 4)
        )
    return list(found.values())


def _sum(amounts: Iterable[Any]) -> Any:
    """Return the sum of what is known; `None` if nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
