from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from msgspec.structs import asdict

from sfad.protocol.requests.base import Reply
from sfad.protocol.requests.following import CallPush, Wait, Watch
from sfad.protocol.requests.listing import List
from sfad.protocol.requests.records import CallPage, ListCalls
from sfad.protocol.texts.units import counted
from sfad.protocol.types import CallInfo, RunId, Source

from .. import exits, output
from ..app import app
from ..connecting.connection import Client, ConnectionLost, Q, R, check
from ..connecting.history import connect
from ..options.selection import ListedSelection, done
from ..options.shared import flag
from ..options.spreading import spread
from ..showing import table
from ..showing.pages import Ask, every, listed

Key = tuple[RunId, float, int]


@app.command()
@spread(ListedSelection)
def calls(
    chosen: ListedSelection,
    tree: Annotated[bool, flag("Also the calls of the runs below")] = False,
    refused: Annotated[bool, flag("Only calls that were refused")] = False,
    follow_: Annotated[bool, flag("Follow the calls until the runs end", "--follow", "-f")] = False,
) -> int:
    """Print the model calls that runs have made through the gateway, or follow them.

    One line for each call, by the time at which the agent asked for it: tokens in and out, of
    the input those read from a cache, cost, seconds to the first byte and in all, and what
    happened, which model has answered, what was not text, and whose price counts. Calls that
    wait or are under way have no figures yet. A cost with ≥ is a lower bound, with ≤ an upper.
    If another source tells that a run has cost more, a line below the table says so.
    --name, --label and --all choose the same runs as for `sfactl list`, including ended ones.

    -f follows until the runs end: each call is printed once it has ended or was refused, even
    if it was printed before as waiting or under way.

    With --json, one object for each call, a line each (docs/protocol.md, CallInfo).
    """
    chosen.check()
    with connect(chosen.socket) as client:
        several = tree or chosen.filtered or len(chosen.runs) > 1
        shown = CallLines(several=several, refused=refused, json=chosen.json)
        told = _Told()
        live: list[RunId] = []

        def act(run: str) -> None:
            page = client.call(ListCalls(id=0, run=run), CallPage)
            told.note(page)
            if follow_ and not page.ended:
                live.append(page.run)
                return
            for each in _below(client.call, page.run) if tree else [page.run]:
                if told.is_new(each, tree=tree):
                    begun = page if each == page.run else None
                    told.end(
                        _print(lambda wanted: client.call(wanted, CallPage), each, shown, begun)
                    )

        if chosen.filtered:
            code = exits.worst(done(run, act) for run in listed(client, chosen))
        else:
            code = chosen.each_of(client, "calls", act)
        if live:
            told.end(*_follow(client, live, shown, tree=tree))
        if shown.any and not (refused or chosen.json):
            for line in told.more:
                print(line)
        if told.runs and not shown.any:
            output.note(told.none(refused=refused))
    return code


class _Told:
    """What is told of the runs after their calls."""

    def __init__(self) -> None:
        self.more: list[str] = []
        """Of each run that has cost more than its calls, a line."""
        self.runs = 0
        self._first = ""
        self._used = False
        self._seen: set[RunId] = set()

    def note(self, page: CallPage) -> None:
        """A run was chosen; `page`: its first calls."""
        self._first = self._first or page.run
        self.runs += 1
        self._used |= page.gateway or bool(page.calls)

    def is_new(self, run: RunId, *, tree: bool) -> bool:
        """Return whether a run is not in the tree of one before it."""
        if tree:
            if run in self._seen:
                return False
            self._seen.add(run)
        return True

    def end(self, *pages: CallPage) -> None:
        """These are the last calls of runs."""
        for page in pages:
            usage = page.usage
            if usage is not None and usage.source is not None:
                self.more.append(
                    f"{page.run}: {output.bound(usage)}{output.used(usage)} count for it, because "
                    f"{_SAYS[usage.source]} tells of more than these calls (sfactl info {page.run})"
                )

    def none(self, *, refused: bool) -> str:
        who = self._first if self.runs == 1 else "these runs"
        if not self._used:
            return (
                f"{who}: no calls: the gateway was not used, or nothing was asked of it "
                "(--gateway, or gateway.enabled in the config)"
            )
        return (
            f"{who}: no call was refused"
            if refused
            else f"{who}: no call was made through the gateway"
        )


def _below(ask: Ask, run: RunId) -> Iterator[RunId]:
    """Yield a run and those below it."""
    for runs in every(ask, List(id=0, root=run, limits=False)):
        yield from (each.id for each in runs)


def _print(
    ask: Callable[[ListCalls], CallPage],
    run: RunId,
    shown: "CallLines",
    begun: CallPage | None = None,
) -> CallPage:
    """Print the calls of a run, of which `begun` has the first. Return the last of its pages."""
    page = begun or ask(ListCalls(id=0, run=run))
    while True:
        for call in page.calls:
            shown.print(call)
        if not page.more:
            return page
        page = ask(ListCalls(id=0, run=run, after=call.time, after_number=call.number))


_SAYS: dict[Source, str] = {
    "gateway": "a session file",  # of calls around it
    "report": "its agent",
    "stream": "its output",
    "session": "its session file",
    "around": "its session file",
    "none": "another source",
}


def _follow(
    client: Client, live: Sequence[RunId], shown: "CallLines", *, tree: bool
) -> list[CallPage]:
    """Print the calls of `live` runs until they end, with those of the runs below them if `tree`.
    Return the last page of each."""
    shown.follow()

    def ask(wanted: Q, expected: type[R]) -> R:
        # not `call`, after whose reconnection no calls would be pushed
        return client.answer(client.send(wanted), expected)[0]

    while True:
        try:
            # before the calls so far: one that ends meanwhile comes twice, and is printed once
            for run in live:
                ask(Watch(id=0, run=run, calls=True), Reply)
            for run in live:
                for each in _below(ask, run) if tree else [run]:
                    _print(lambda wanted: ask(wanted, CallPage), each, shown)
            waits = {client.send(Wait(id=0, run=run)) for run in live}
            while waits:
                for answer in client.arrived():
                    _take(answer.reply, waits, live, shown, tree=tree)
            return [client.call(ListCalls(id=0, run=run), CallPage) for run in live]
        except ConnectionLost:
            client.reconnect("the runs may continue")


def _take(
    reply: Reply, waits: set[int], live: Sequence[RunId], shown: "CallLines", *, tree: bool
) -> None:
    check(reply)
    if not isinstance(reply, CallPush):
        waits.discard(reply.id)
    elif tree or reply.call.run_id in live:
        shown.print(reply.call)


# ---- lines


class CallLines:
    """Prints calls: a table for people whose columns are as wide as their content usually is, or
    JSON."""

    def __init__(self, *, several: bool, refused: bool, json: bool) -> None:
        self._several = several
        self._refused = refused
        self._json = json
        self._printed: OrderedDict[Key, tuple[str, int]] | None = None
        """Of calls that may come again."""
        self._room = table.terminal_width()
        self.any = False

    def print(self, call: CallInfo) -> None:
        """Print a call, unless it was printed as it is, or has ended since."""
        if (self._refused and call.state != "refused") or self._is_stale(call):
            return
        if self._json:
            output.print_json(asdict(call))
        else:
            if not self.any:
                self._line(HEADER)
            self._line([call.run_id, *cells(call)])
        self.any = True

    def follow(self) -> None:
        """From now on, calls may come several times."""
        self._printed = self._printed or OrderedDict()

    def _is_stale(self, call: CallInfo) -> bool:
        if self._printed is None:
            return False
        key, as_is = (call.run_id, call.time.timestamp(), call.number), (call.state, call.more)
        before = self._printed.get(key)
        if before == as_is or (before is not None and before[0] not in OPEN and call.state in OPEN):
            return True
        self._printed[key] = as_is
        if len(self._printed) > REMEMBERED:
            self._printed.popitem(last=False)
        return False

    def _line(self, cells: Sequence[str]) -> None:
        shown = zip(cells, WIDTHS, strict=True)
        line = "  ".join(
            _padded(cell, room) for cell, room in list(shown)[0 if self._several else 1 :]
        ).rstrip()
        print(line if self._room is None else table.cut(line, self._room), flush=True)


OPEN = ("waiting", "under_way")
REMEMBERED = 10_000
"""Calls that were printed last: one that comes a second time was under way a moment ago."""

HEADER = ("RUN", "TIME", "MODEL", "IN", "CACHED", "OUT", "USD", "FIRST", "TOOK", "RESULT")
WIDTHS = (6, 12, 24, 6, 6, 6, 8, 6, 6, 0)


def _padded(cell: str, room: int) -> str:
    return cell + " " * (room - output.width(cell))


def cells(call: CallInfo) -> list[str]:
    """Return what the table shows of a call, without its run."""
    return [
        output.clock(call.time),
        output.plain(call.model or call.path or "-"),
        output.short(call.input_tokens),
        output.short(call.cached_tokens),
        output.short(call.output_tokens),
        output.bounded(output.usd(call.cost_usd), call),
        _short(call.first_byte_s),
        _short(call.elapsed_s),
        output.plain(result(call)),
    ]


def _short(seconds: float | None) -> str:
    """Return a duration, which may be a few milliseconds, for people."""
    return (
        output.seconds(seconds) if seconds is None or seconds >= 0.95 else f"{1000 * seconds:.0f}ms"
    )


def result(call: CallInfo) -> str:
    """Return what became of a call."""
    lowered = [f"lowered to {call.clamped_to}"] if call.clamped_to is not None else []
    waited = [f"waited {output.seconds(call.waited_s)}"] if (call.waited_s or 0.0) >= 1.0 else []
    match call.state:
        case "waiting":
            return "waiting"
        case "under_way":
            return ", ".join(["under way", *lowered, *waited])
        case "refused":
            return f"refused: {call.refused}{_more(call)}"
        case "withdrawn":
            return f"not made: {call.error}{_more(call)}"
        case "ended":
            tools = [counted(call.tools, "tool call")] if call.tools else []
            status = [str(call.status)] if call.status is not None else []
            error = [call.error] if call.error is not None else []
            said = [*status, *error, *tools, *lowered, *waited, *_modes(call), *_price(call)]
            return ", ".join(said) or "ended"


def _modes(call: CallInfo) -> Iterator[str]:
    for mode, (into, out) in call.modes.items():
        shown = [
            f"{output.short(count)} {way}" for count, way in ((into, "in"), (out, "out")) if count
        ]
        if shown:
            yield f"{mode} {' and '.join(shown)}"


def _price(call: CallInfo) -> Iterator[str]:
    """Yield which model has answered, and whose price counts, where that is another one."""
    if call.served is not None:
        yield f"answered by {call.served}"
    if call.price_from == "reply":
        yield "cost as the reply says"
    elif call.estimated:
        yield f"cost estimated (price of {call.price_from or 'another model'})"
    elif call.price_from not in {None, call.served or call.model}:
        yield f"price of {call.price_from}"


def _more(call: CallInfo) -> str:
    return f" (and {counted(call.more, 'more call')} in that minute)" if call.more else ""
