"""Which nodes a request is for, and what its client is told: a client that has asked for the fleet
with `OverFleet`."""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import trio
from msgspec import msgpack
from msgspec.structs import replace

from ....daemon.server.asker import Answering, Asker
from ....daemon.server.checks import CHANGES
from ....daemon.server.connection import Connection, RunRow, RunRows
from ....host.clock import wall_clock
from ....protocol import messages as m
from ....protocol.errors import RequestError, bad_request, wrong_state
from ....protocol.types import AlertState, ErrorCode, RunInfo, Status, Unreached
from ..files.sending import PACK_SECONDS
from ..messages import FetchFiles
from ..nodes import ANSWER, Nodes
from .following import Watching, tell_events
from .names import Names
from .sums import OVER, added, below, left_of, page_of, subscriptions_of, with_names

Here = Callable[[m.Request], Answering]
"""Answers a request as that of a client which has not asked for the fleet."""

WHERE_IT_EXECUTES = (
    m.Info, m.ReadOutput, m.Text, m.Logs, m.ListCalls, m.Watch,
    m.ChangeLimits, m.Approve, m.Deny,
)  # fmt: skip
"""Requests about a run that its node answers. Others are for the node that has started it, whose
decision reaches the other."""

STOPS = 75.0
"""Seconds that a node has to stop runs: the longest grace, and what comes after it."""
CLOCKS = 300.0
"""Seconds by which the clocks of two nodes may differ when the runs below one are looked for."""
PAGE = 250
"""Ended runs that a node is asked for at once when all of them are looked for."""
LEAST_ROWS = 4
"""Ended runs that each of more nodes is asked for at least."""
FEW = 16
"""Nodes of which each is asked for a whole page."""
_STOP_AGAIN = "whether it stops is not known: stop it again when the node answers"
_LIVE = [status for status in Status if not status.terminal]


class FleetClient:
    def __init__(self, nodes: Nodes, connection: Connection) -> None:
        self._nodes = nodes
        self._connection = connection
        self._names = Names()
        self._alerts: list[AlertState] = []
        """Of other nodes."""
        self._unanswered: dict[str, str] = {}
        """Why they have not told of their alerts."""
        self._scopes: set[trio.CancelScope] = set()
        # it is not handed over to a daemon that executes itself again: the client connects anew
        connection.on_close = self._end
        connection.instead = self

    def _end(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    def answer(self, asker: Asker, request: Any, here: Here) -> Answering:
        """See `Instead`."""
        match request:
            case m.List():
                work = self._list(asker, request)
            case m.WatchRuns(root=str()):
                raise bad_request(
                    "the runs of a fleet are watched all together: leave out the root"
                )
            case m.WatchRuns():
                work = Watching(self._nodes, self._names, asker, request).serve()
            case m.Events(runs=[]):
                work = tell_events(self._nodes, self._names, asker, request)
            case m.Summarise():
                work = self._summarise(asker, request)
            case m.ListSubscriptions():
                work = self._subscriptions(asker)
            case m.Stop() | m.Select():
                work = self._of_several(asker, request, here)
            case m.DaemonInfo():
                work = self._status(asker, request, here)
            case m.Recall(run=run) if self._node(run) != self._nodes.own:
                node, _, there = run.rpartition("/")
                raise bad_request(
                    f"run {run} was started on node {node}, which has its directory and its "
                    f"session: start it again, or continue it, there, as {there}"
                )
            case m.Events():
                work = self._about(asker, request, request.runs, here)
            case _ if isinstance(handle := getattr(request, "run", None), str) and handle:
                work = self._about(asker, request, [handle], here)
            case _:
                return here(request)
        return self._cancellable(asker, work)

    async def _cancellable(self, asker: Asker, work: Awaitable[None]) -> None:
        await asker.aside()
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await work
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            asker.end()

    def _reply(self, asker: Asker, reply: m.Reply) -> None:
        """Send a reply that has the names of the fleet."""
        if asker.still_wanted():
            reply.id = asker.id
            asker.end()
            self._connection.send(reply, changed=True)

    def changed(self, reply: Any) -> m.Reply:
        """See `Instead`."""
        own = self._nodes.own
        match reply:
            case RunRow():
                run = msgpack.decode(reply.run, type=RunInfo)
                return self._names.reply(own, m.RunReply(id=reply.id, run=run))
            case RunRows():
                runs = [msgpack.decode(run, type=RunInfo) for run in reply.runs]
                return self._names.reply(
                    own, m.RunList(id=reply.id, runs=runs, next=reply.next, queued=reply.queued)
                )
            case m.DaemonStatus():
                alerts = [self._names.alert(own, alert) for alert in reply.alerts]
                return replace(reply, alerts=[*alerts, *self._alerts], unanswered=self._unanswered)
            case _:
                found: m.Reply = self._names.reply(own, reply)
                return found

    # ---- about one run, or several

    def _node(self, handle: str) -> str:
        return handle.rpartition("/")[0] or self._nodes.own

    async def _find(self, handle: str, *, executes: bool) -> tuple[str, str]:
        """Return the node whose daemon answers for a run, and the run's id or name there. Raise
        `RequestError`, `OSError`."""
        node, run = self._node(handle), handle.rpartition("/")[2]
        for _ in range(2 if executes else 0):  # a run that was granted is never granted again
            place = (await self._info(node, run)).fleet
            if place is None or place.node is None or not place.run:
                break
            node, run = place.node, place.run
        return node, run

    async def _info(self, node: str, run: str) -> RunInfo:
        found = (await self._nodes.ask(node, m.Info(id=0, run=run), m.RunReply)).run
        self._names.learn(node, [found])
        return found

    async def _about(self, asker: Asker, request: Any, handles: list[str], here: Here) -> None:
        executes = isinstance(request, WHERE_IT_EXECUTES)
        try:
            found = [await self._find(handle, executes=executes) for handle in handles]
        except OSError:
            if isinstance(request, m.Info) and self._tell_as_heard(asker, handles[0]):
                return
            if not isinstance(request, m.ReadOutput):
                raise
            # the node that has started it keeps its last lines
            found = [await self._find(handle, executes=False) for handle in handles]
        (node, *others), runs = zip(*found, strict=True)
        if any(other != node for other in others):
            raise bad_request("these runs are on several nodes: name those of one node")
        request = replace(request, **_naming(request, list(runs)))
        if node == self._nodes.own and not isinstance(request, m.Resume):
            if asker.still_wanted() and (rest := here(request)) is not None:
                await rest
            return
        if isinstance(request, m.Logs):
            raise wrong_state(
                f"the output of run {handles[0]} is on node {node}, and no file can be handed out "
                "from there: read it in pieces, as sfactl logs does"
            )
        if isinstance(request, m.Watch) or (isinstance(request, m.Events) and request.follow):
            await self._pass_stream_on(asker, node, request)
            return
        try:
            reply = await self._asked(node, request)
        except RequestError as error:
            if not isinstance(request, m.Resume) or error.code is not ErrorCode.WRONG_STATE:
                raise
            there, run = await self._find(handles[0], executes=True)
            if there == node:
                raise
            node, reply = there, await self._asked(there, replace(request, run=run))
        self._reply(asker, self._names.reply(node, reply))

    def _tell_as_heard(self, asker: Asker, handle: str) -> bool:
        """Tell what is known of a run whose node does not answer. Return whether anything is."""
        node = self._node(handle)
        run = self._nodes.heard_of(node, handle.rpartition("/")[2])
        if run is None:
            return False
        why = {node: self._nodes.since(node)}
        self._reply(asker, m.RunReply(id=0, run=self._names.run(node, run), unanswered=why))
        return True

    async def _asked(self, node: str, request: Any) -> m.Reply:
        """Return a node's answer. A wait goes on while its daemon is restarted."""
        if isinstance(request, m.Pause | m.Resume | FetchFiles):
            within = PACK_SECONDS if isinstance(request, FetchFiles) else ANSWER
            return await self._nodes.ask_living(node, replace(request), m.Reply, within)
        if not isinstance(request, m.Wait):
            return await self._nodes.ask(node, replace(request), m.Reply)
        begins = trio.current_time()
        lost_at = math.inf
        while True:
            left = request.timeout
            if left is not None:
                left = max(left - (trio.current_time() - begins), 0.0)
            try:
                wanted = replace(request, timeout=left, tie=False)
                return await self._nodes.ask(node, wanted, m.RunReply, math.inf)
            except OSError:
                now = trio.current_time()
                lost_at = min(lost_at, now)
                if now - lost_at > ANSWER:
                    raise
            await trio.sleep(1.0)

    async def _pass_stream_on(self, asker: Asker, node: str, request: Any) -> None:
        first = True

        def take(reply: m.Reply) -> None:
            nonlocal first
            reply = self._names.reply(node, reply)
            reply.id = asker.id
            if first:
                first = False
                self._reply(asker, reply)
            else:
                self._connection.send(reply, changed=True)

        await self._nodes.fleet.follow(node, request, take)

    async def _of_several(self, asker: Asker, request: Any, here: Here) -> None:
        """Ask each node about its runs of those that are named, or all nodes about those that the
        request chooses."""
        by_node: dict[str, list[str]] = {}
        for handle in request.runs:
            by_node.setdefault(self._node(handle), []).append(handle.rpartition("/")[2])
        chooses = bool(request.everything or request.name or request.labels)
        expected: Any = m.Stopped if isinstance(request, m.Stop) else m.Selected
        failed: dict[str, str] = {}
        changes = isinstance(request, m.Stop) or request.verb in CHANGES
        if chooses and changes and not asker.peer.owner:
            # the daemons of other nodes take each request for one of their own user
            raise RequestError(
                ErrorCode.NOT_PERMITTED,
                "of all nodes, only root and the daemon's own user may choose runs by --all, "
                "--name or --label, because those of all users are meant: name yours as NODE/ID",
            )
        if by_node.keys() == {self._nodes.own} and not chooses:
            wanted = replace(request, runs=by_node[self._nodes.own])
            if asker.still_wanted() and (rest := here(wanted)) is not None:
                await rest
            return

        def part(node: str) -> m.Request:
            its_own: m.Request = replace(request, runs=by_node.get(node, []))
            return its_own

        async def ask(node: str, wanted: m.Request, expected: type[Any]) -> Any:
            if isinstance(wanted, m.Stop):
                return await self._nodes.ask_living(node, wanted, expected, STOPS)
            return await self._nodes.ask(node, wanted, expected)

        if chooses or not request.runs:
            found, failed = await self._nodes.each(part, expected, ask=ask)
        else:
            found, failed = await self._nodes.each_of(by_node, part, expected, ask)
        replies = [self._names.reply(node, reply) for node, reply in found.items()]
        missed = [f"{node}/{run}" for node in failed for run in by_node.get(node, ())]
        if missed or not replies:
            replies.append(self._without(request, missed, failed))
        whole = _together(replies)
        whole.unanswered = failed
        self._reply(asker, whole)

    @staticmethod
    def _without(request: Any, missed: list[str], failed: Mapping[str, str]) -> m.Reply:
        """Return the answer for runs whose nodes have not answered. Raise `OSError` if there are
        none."""
        if not missed:
            raise OSError("; ".join(f"node {node}: {why}" for node, why in failed.items()))
        nodes = {run: run.rpartition("/")[0] for run in missed}
        whys = {run: f"node {node} {failed[node]}" for run, node in nodes.items()}
        if isinstance(request, m.Stop):
            unreached = [
                Unreached(run_id=run, node=nodes[run], why=f"{why}; {_STOP_AGAIN}")
                for run, why in whys.items()
            ]
            return m.Stopped(id=0, stopped=[], survivors=[], elapsed_s=0.0, unreached=unreached)
        if request.verb == "stop":  # the stop tells that they are not reached
            return m.Selected(id=0, runs=missed)
        failures = [
            m.Failure(run=run, code=ErrorCode.UNAVAILABLE, message=why) for run, why in whys.items()
        ]
        return m.Selected(id=0, runs=[], failed=failures)

    # ---- about all

    async def _list(self, asker: Asker, request: m.List) -> None:
        if request.root is not None:
            await self._tree(asker, request)
            return
        await self._nodes.look()
        up = request.after is not None
        left = left_of(request.after or None if up else request.before, self._nodes.names)

        def page(node: str) -> m.Request:
            way = {"after": left[node]} if up else {"before": left[node] or None}
            return replace(request, rows=rows, **way)

        # of many nodes each tells less at once: the page is as long as of one
        share = max(request.rows // len(self._nodes.names), LEAST_ROWS)
        rows = min(request.rows, share) if len(self._nodes.names) > FEW else request.rows
        over = [node for node, last in left.items() if last == OVER]
        pages, unanswered = await self._nodes.each(page, m.RunList, without=over)
        first = request.before is None and not request.after
        found = page_of(pages, left, self._names, first=first, up=up)
        found.unanswered = unanswered
        if first:
            self._add_unheard(found, request)
            plain = replace(request, rows=0, live=False, limits=True, queued=None)
            if plain == m.List(id=request.id, rows=0):
                for node, each in pages.items():
                    self._nodes.note_heard(node, each.runs, wall_clock())
        self._reply(asker, found)

    def _add_unheard(self, found: m.RunList, request: m.List) -> None:
        """Add the live runs of nodes that have not answered, as they were."""
        shown = {run.id for run in found.runs}
        for node in found.unanswered:
            runs = self._names.runs(node, self._nodes.heard(node, request))
            found.runs += [run for run in runs if run.id not in shown]
        found.runs.sort(key=lambda run: run.created_at)

    async def _tree(self, asker: Asker, request: m.List) -> None:
        """Tell the runs below one, all on one page: their tree is known only when all are."""
        assert request.root is not None
        node, run = await self._find(request.root, executes=False)
        top = await self._info(node, run)
        since = max(request.since or 0.0, top.created_at.timestamp() - CLOCKS)
        wanted = replace(
            request, root=None, since=since, rows=PAGE, before=None, after=None, queued=None
        )

        found: dict[str, dict[str, RunInfo]] = {}
        begins: dict[str, str | None] = dict.fromkeys(self._nodes.names)
        unanswered: dict[str, str] = {}
        while begins:
            asks = {node: replace(wanted, before=before) for node, before in begins.items()}
            pages, failed = await self._nodes.each(
                asks.__getitem__,
                m.RunList,
                without=[node for node in self._nodes.names if node not in begins],
            )
            unanswered |= failed
            for other, each in pages.items():
                found.setdefault(other, {}).update({run.id: run for run in each.runs})
            begins = {node: each.next for node, each in pages.items() if each.next is not None}
        told = {node: m.RunList(id=0, runs=list(runs.values())) for node, runs in found.items()}
        whole = page_of(told, dict.fromkeys(told, ""), self._names, first=True)
        name = self._names.run(node, top).id
        rows = below(name, whole.runs)
        self._reply(asker, m.RunList(id=0, runs=rows, unanswered=unanswered))

    async def _summarise(self, asker: Asker, request: m.Summarise) -> None:
        """Each run is told by the node that executes it."""

        live = m.List(id=0, status=_LIVE, rows=0)
        runs, failed = await self._nodes.each(lambda _: live, m.RunList)
        for node, told in runs.items():
            self._names.learn(node, told.runs)
        wanted = replace(request, here=True, missing=sorted(failed))
        replies, unanswered = await self._nodes.each(lambda _: wanted, m.Summarised, without=failed)
        unanswered |= failed
        if not replies:
            raise OSError("; ".join(f"node {node}: {why}" for node, why in unanswered.items()))
        found = {node: reply.summary for node, reply in replies.items()}
        whole = added([with_names(each, node, self._names) for node, each in found.items()])
        self._reply(asker, m.Summarised(id=0, summary=whole, unanswered=unanswered))

    async def _subscriptions(self, asker: Asker) -> None:
        wanted = m.ListSubscriptions(id=0)
        replies, unanswered = await self._nodes.each(lambda _: wanted, m.SubscriptionList)
        found = {node: reply.accounts for node, reply in replies.items()}
        accounts = subscriptions_of(found, self._names)
        self._reply(asker, m.SubscriptionList(id=0, accounts=accounts, unanswered=unanswered))

    async def _status(self, asker: Asker, request: m.DaemonInfo, here: Here) -> None:
        """Tell of the daemon here, and of the alerts of all nodes."""

        wanted = m.DaemonInfo(id=0)
        found, self._unanswered = await self._nodes.each(
            lambda _: wanted, m.DaemonStatus, without=[self._nodes.own]
        )
        self._alerts = [
            self._names.alert(node, alert)
            for node, status in found.items()
            for alert in status.alerts
        ]
        if asker.still_wanted() and (rest := here(request)) is not None:
            await rest


def _naming(request: Any, runs: list[str]) -> dict[str, Any]:
    """Return the fields of a request that name its runs."""
    return {"runs": runs} if isinstance(request, m.Events) else {"run": runs[0]}


def _together(found: Iterable[Any]) -> Any:
    """Return what several nodes have stopped or selected, as one."""
    first, *others = found
    for each in others:
        if isinstance(first, m.Stopped):
            first.stopped += each.stopped
            first.survivors += each.survivors
            first.ended += each.ended
            first.unreached += each.unreached
            first.elapsed_s = max(first.elapsed_s, each.elapsed_s)
        else:
            first.runs += each.runs
            first.failed += each.failed
    return first
