from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from msgspec.structs import asdict

from sfad.protocol.requests.base import Reply
from sfad.protocol.requests.following import CallPush, Wait, Watch
from sfad.protocol.requests.listing import List
from sfad.protocol.requests.records import CallPage, ListCalls
from sfad.protocol.types import CallInfo, RunId, Source
from sfad.protocol.units import counted

from .. import output
from ..app import app
from ..connecting.connection import Client, ConnectionLost, check
from ..connecting.history import connect
from ..options.selection import ListedSelection
from ..options.shared import flag
from ..options.spreading import spread
from ..showing import table
from .list import collect, listed

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
        first: list[CallPage] = []
        named = listed(client, chosen) if chosen.filtered else chosen
        code = named.each_of(
            client,
            "calls",
            lambda run: first.append(client.call(ListCalls(id=0, run=run), CallPage)),
        )
        shown = CallLines(several=tree or len(first) > 1, refused=refused, json=chosen.json)
        live = [page.run for page in first if not page.ended]
        runs = _with_trees(client, first, tree=tree)
        if follow_ and live:
            _follow(client, live, runs, shown, tree=tree)
        else:
            for run in runs:
                _print(lambda wanted: client.call(wanted, CallPage), run, shown)
        if shown.any and not (refused or chosen.json):
            for run in runs:
                _tell_of_more(client.call(ListCalls(id=0, run=run), CallPage))
        if first and not shown.any:
            output.note(_none(first, refused=refused))
    return code


def _with_trees(client: Client, first: Sequence[CallPage], *, tree: bool) -> list[RunId]:
    """Return the runs, with those below them if `tree`, each once."""
    if not tree:
        return list(dict.fromkeys(page.run for page in first))
    below = [
        sorted(
            collect(client, List(id=0, root=page.run, limits=False), None, lambda _run: None).runs
        )
        for page in first
    ]
    return list(dict.fromkeys(run for found in below for run in found))


def _print(ask: Callable[[ListCalls], CallPage], run: RunId, shown: "CallLines") -> None:
    page = ask(ListCalls(id=0, run=run))
    while True:
        for call in page.calls:
            shown.print(call)
        if not page.more:
            return
        page = ask(ListCalls(id=0, run=run, after=call.time, after_number=call.number))


def _tell_of_more(page: CallPage) -> None:
    """Print what counts for a run if that is more than its calls have cost."""
    usage = page.usage
    if usage is not None and usage.source is not None:
        print(
            f"{page.run}: {output.bound(usage)}{output.used(usage)} count for it, because "
            f"{_SAYS[usage.source]} tells of more than these calls (sfactl info {page.run})"
        )


_SAYS: dict[Source, str] = {
    "gateway": "a session file",  # of calls around it
    "report": "its agent",
    "stream": "its output",
    "session": "its session file",
    "around": "its session file",
    "none": "another source",
}


def _none(first: Sequence[CallPage], *, refused: bool) -> str:
    who = first[0].run if len(first) == 1 else "these runs"
    if not any(page.gateway or page.calls for page in first):
        return (
            f"{who}: no calls: the gateway was not used, or nothing was asked of it (--gateway, "
            "or gateway.enabled in the config)"
        )
    return (
        f"{who}: no call was refused" if refused else f"{who}: no call was made through the gateway"
    )


def _follow(
    client: Client, live: Sequence[RunId], runs: Sequence[RunId], shown: "CallLines", *, tree: bool
) -> None:
    """Print the calls of `runs`, then those of the `live` ones until they end, with those of the
    runs below them if `tree`."""
    while True:
        try:
            # before the calls so far: one that ends meanwhile comes twice, and is printed once
            for run in live:
                client.answer(client.send(Watch(id=0, run=run, calls=True)), Reply)
            for run in runs:
                # not `call`, after whose reconnection no calls would be pushed
                _print(lambda wanted: client.answer(client.send(wanted), CallPage)[0], run, shown)
            waits = {client.send(Wait(id=0, run=run)) for run in live}
            while waits:
                for answer in client.arrived():
                    _take(answer.reply, waits, live, shown, tree=tree)
            return
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
        self._printed: dict[Key, tuple[str, int]] = {}
        self._room = table.terminal_width()
        self.any = False

    def print(self, call: CallInfo) -> None:
        """Print a call, unless it was printed as it is, or has ended since."""
        key, as_is = (call.run_id, call.time.timestamp(), call.number), (call.state, call.more)
        before = self._printed.get(key)
        stale = before is not None and before[0] not in OPEN and call.state in OPEN
        if (self._refused and call.state != "refused") or before == as_is or stale:
            return
        self._printed[key] = as_is
        if self._json:
            output.print_json(asdict(call))
        else:
            if not self.any:
                self._line(HEADER)
            self._line([call.run_id, *cells(call)])
        self.any = True

    def _line(self, cells: Sequence[str]) -> None:
        shown = zip(cells, WIDTHS, strict=True)
        line = "  ".join(
            _padded(cell, room) for cell, room in list(shown)[0 if self._several else 1 :]
        ).rstrip()
        print(line if self._room is None else table.cut(line, self._room), flush=True)


OPEN = ("waiting", "under_way")

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
