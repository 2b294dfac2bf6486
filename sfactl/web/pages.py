"""The pages, what they read, and what they ask for."""

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Any

import msgspec
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from sfad.protocol import messages as m
from sfad.protocol.requests.summary import GROUPED_BY, Group
from sfad.protocol.texts.units import parse_duration
from sfad.protocol.types import SEVERITIES, ErrorCode, Event, RunId, Severity, Status

from .. import output
from ..connecting.connection import ABSENT, DaemonError, Unreachable
from ..exits import Quit, UsageError, understood
from ..options.selection import labels
from ..options.shared import pair
from ..showing.waiting import unlanded
from . import actions, views
from .access import MOST_BODY, Gate
from .feed import Feed
from .source import Source, in_thread
from .stream import EventStream

TYPES = {
    "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "png": "image/png",
    "json": "application/manifest+json", "LICENSE": "text/plain",
}  # fmt: skip
FOR_EVER = "public, max-age=31536000, immutable"
COMMON = ("app", "actions", "api", "dom", "format", "live", "notify")
"""Modules that every page imports."""
MORE = {
    "now": ("rows",),
    "run": ("rows", "ansi", "plot", "events", "terminal"),
    "history": ("rows", "plot"),
    "plans": (),
    "events": (),
}
"""What the module of a page imports beside those."""


class Static:
    def __init__(self) -> None:
        place = files(__package__) / "static"
        self._files = {
            each.name: each.read_bytes()
            for each in place.iterdir()
            if each.name.rpartition(".")[2] in TYPES
        }
        self._page = (place / "page.html").read_text()
        digest = sha256()
        for name in sorted(self._files):
            digest.update(name.encode() + self._files[name])
        self.version = digest.hexdigest()[:12]

    def shell(self, page: str) -> str:
        """Return the HTML of a page. It names all modules, so that a browser does not find them one
        after the other."""
        wanted = (*COMMON, page, *MORE[page])
        preloads = "\n".join(
            f'<link rel="modulepreload" href="/static/{self.version}/{name}.js">' for name in wanted
        )
        return self._page.replace("{{preloads}}", preloads).replace("{{version}}", self.version)

    async def file(self, request: Request) -> Response:
        return self._answer(
            request.path_params["name"], request.path_params.get("version") == self.version
        )

    async def worker(self, _request: Request) -> Response:
        """Return the service worker. It must be above all pages that it serves, and so has no place
        in /static."""
        return self._answer("sw.js", False)

    def _answer(self, name: str, for_ever: bool) -> Response:
        content = self._files.get(name)
        if content is None:
            return PlainTextResponse("there is no such file\n", 404)
        headers = {"cache-control": FOR_EVER if for_ever else "no-cache"}
        return Response(content, headers=headers, media_type=TYPES[name.rpartition(".")[2]])


PAGES = {
    "/": "now",
    "/runs/{run}": "run",
    "/history": "history",
    "/plans": "plans",
    "/events": "events",
}
"""Each path, and the module in static/ that fills the page."""
TITLES = {
    "now": "Now",
    "run": "Run",
    "history": "History",
    "plans": "Subscriptions and budgets",
    "events": "Events and alerts",
}
ROWS = 50
"""Ended runs of one page of the history."""
MOST_DAYS = 62
"""Bars of the chart."""
MOST_CALLS = 2000
"""Model calls that are read for a run's page, the first ones."""
SERIES = 7
"""Groups that have a colour of their own in the chart."""


class Console:
    """What the handlers share."""

    def __init__(self, source: Source, gate: Gate, nursery: trio.Nursery) -> None:
        self.source, self.gate = source, gate
        self.feed = Feed(source, nursery)
        self.static = Static()

    def page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        title = TITLES[name]

        async def show(request: Request) -> Response:
            fields = {
                "page": name,
                "title": title,
                "token": request.state.login.token,
                "run": self.source.of_path(request.path_params.get("run", "")),
                "node": self.source.own,
            }
            text = self.static.shell(name)
            for key, value in fields.items():
                text = text.replace("{{" + key + "}}", escape(value, quote=True))
            return HTMLResponse(
                text.replace(f'data-to="{name}"', f'data-to="{name}" aria-current="page"')
            )

        return show

    def read(
        self, handler: Callable[["Console", Request], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that answers with JSON, or with the words of an error."""

        async def answer(request: Request) -> Response:
            try:
                found = await handler(self, request)
            except (Quit, OSError) as error:
                return refused(error)
            return found if isinstance(found, Response) else json(found)

        return answer

    def run(self, request: Request) -> RunId:
        """Return the run that a request's path names."""
        return self.source.of_path(request.path_params["run"])

    async def stream(self, request: Request) -> Response:
        return EventStream(request, self.source, self.feed)


def json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def refused(error: Quit | OSError) -> Response:
    """Return what a page shows of an error."""
    status, words = 409, error.message if isinstance(error, Quit) else str(error)
    if isinstance(error, UsageError):
        status = 400
    elif isinstance(error, DaemonError):
        status = _STATUS.get(error.error, 409)
    elif isinstance(error, Unreachable):
        status = 503
        words = "the daemon is away" if error.kind in (*ABSENT, "gone") else words
    return json({"error": words}, status)


_STATUS = {
    ErrorCode.NO_SUCH_RUN: 404, ErrorCode.NOT_PERMITTED: 403, ErrorCode.BAD_REQUEST: 400,
    ErrorCode.UNAVAILABLE: 503, ErrorCode.INTERNAL: 500,
}  # fmt: skip


# ---- a run


def _labels(query: Mapping[str, str]) -> dict[str, str | list[str]]:
    return labels([understood("label", pair, query["label"])] if query.get("label") else [])


async def _run(console: Console, request: Request) -> Any:
    run = (await console.source.ask(m.Info(id=0, run=console.run(request)), m.RunReply)).run
    work = await in_thread(partial(unlanded, run))
    return {"row": views.alone(run, console.feed.table.limit_share), **views.details(run, work)}


async def _tree(console: Console, request: Request) -> Any:
    """Return the runs below one, at most 500."""
    top = console.run(request)
    found: list[Any] = []
    before: RunId | None = None
    while len(found) < 500:
        page = await console.source.ask(m.List(id=0, root=top, rows=100, before=before), m.RunList)
        found += [
            views.alone(run, console.feed.table.limit_share) for run in page.runs if run.id != top
        ]
        before = page.next
        if before is None:
            break
    return {
        "rows": sorted(found, key=lambda row: (row["created"], row["id"])),
        "more": before is not None,
    }


async def _live(console: Console, request: Request) -> Any:
    """Return the number of live runs below one."""
    top = console.run(request)
    found = await console.source.ask(m.List(id=0, root=top, rows=0), m.RunList)
    return {"live": sum(run.id != top for run in found.runs)}


async def _calls(console: Console, request: Request) -> Any:
    """Return a run's model calls, and what was used after each of them; without the gateway, what
    this process has seen."""
    run = console.run(request)
    found: list[Any] = []
    page, wanted = None, m.ListCalls(id=0, run=run)
    while len(found) < MOST_CALLS:
        page = await console.source.ask(wanted, m.CallPage)
        found += page.calls
        if not page.more:
            break
        wanted = m.ListCalls(
            id=0, run=run, after=page.calls[-1].time, after_number=page.calls[-1].number
        )
    known = console.feed.points.get(run)
    return {
        "calls": [views.call(each) for each in found],
        "more": page is not None and page.more,
        "gateway": page is not None and page.gateway,
        "points": known.listed() if known is not None else [],
    }


# ---- the history


async def _history(console: Console, request: Request) -> Any:
    query = request.query_params
    status = [_status(each) for each in query.get("status", "").split(",") if each]
    wanted = m.List(
        id=0,
        status=status,
        name=query.get("name") or None,
        user=query.get("user") or None,
        run_type=query.get("type") or None,
        channel=query.get("channel") or None,
        model=query.get("model") or None,
        since=_since(query.get("since", "")),
        labels=_labels(query),
        rows=ROWS,
        before=query.get("before") or None,
    )
    page = await console.source.ask(wanted, m.RunList)
    runs = sorted(page.runs, key=lambda run: run.created_at, reverse=True)
    rows = [views.alone(run, console.feed.table.limit_share) for run in runs]
    return {"rows": rows, "next": page.next, "unanswered": sorted(page.unanswered)}


async def _costs(console: Console, request: Request) -> Any:
    """Return what the runs of each day have cost, by group, and the summary of the whole period."""
    query = request.query_params
    by = query.get("by", "name")
    if by not in GROUPED_BY:
        raise UsageError(f"by: unknown key {by!r}; choose from: {', '.join(GROUPED_BY)}")
    days = [
        float(day)
        for day in query.get("days", "").split(",")
        if day.replace(".", "", 1).isdecimal()
    ]
    if not 2 <= len(days) <= MOST_DAYS + 1 or days != sorted(days):
        raise UsageError(f"days: give 2 to {MOST_DAYS + 1} Unix times, the first one first")
    whole = m.Summarise(
        id=0,
        since=days[0],
        by=by,
        name=query.get("name") or None,
        user=query.get("user") or None,
        run_type=query.get("type") or None,
        channel=query.get("channel") or None,
        model=query.get("model") or None,
        labels=_labels(query),
    )
    told = await console.source.ask(whole, m.Summarised)
    found = told.summary
    cost: list[dict[str, float | None]] = []
    for start, end in pairwise(days):
        part = msgspec.structs.replace(whole, since=start, until=end, groups_only=True)
        groups: list[Group] = []
        if found.runs:
            groups = (await console.source.ask(part, m.Summarised)).summary.groups
        cost.append({each.key or "-": each.cost_usd for each in groups})
    dearest = [each.key or "-" for each in found.groups if each.cost_usd][:SERIES]
    others = any(day[name] and name not in dearest for day in cost for name in day)
    return {
        "by": by,
        "unanswered": sorted(told.unanswered),
        "runs": found.runs,
        "cost": found.cost_usd,
        "tokens": found.tokens,
        "mark": output.mark(found),
        "statuses": {
            status.value.replace("_", " "): count for status, count in found.by_status.items()
        },
        "series": [
            {"name": name, "values": [day.get(name, 0.0) for day in cost]} for name in dearest
        ]
        + (
            [{"name": "others", "values": [_others(day, dearest) for day in cost]}]
            if others
            else []
        ),
        "breaches": [
            {
                "run": each.run_id,
                "kind": each.limit_kind,
                "used": each.used,
                "of": each.threshold,
                "reserved": each.reserved,
            }
            for each in reversed(found.breaches[-20:])
        ],
        "failed": [
            {"run": each.run_id, "name": each.name, "reason": each.reason[: views.LONGEST]}
            for each in found.failed[-20:]
        ],
    }


def _others(day: dict[str, float | None], dearest: list[str]) -> float | None:
    """Return what the groups without a colour have cost; `None` if that is known of none."""
    values = [value for name, value in day.items() if name not in dearest]
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError:
        raise UsageError(f"status: unknown state {text!r}") from None


def _since(text: str) -> float | None:
    if not text:
        return None
    seconds = understood("since", parse_duration, text)
    return views.now() - seconds


# ---- events, money, agents


async def _events(console: Console, request: Request) -> Any:
    """Return the events before one, the newest first."""
    query = request.query_params
    before = views.number(query.get("before", "")) or 0
    wanted = m.Events(id=0, types=[each for each in query.get("type", "").split(",") if each])
    wanted.severity = _severity(query.get("severity", "low"))
    wanted.before = before
    found: list[Event] = []
    while wanted.before and len(found) < ROWS:
        wanted.rows = ROWS - len(found)
        page = await console.source.ask_here(wanted, m.EventPage)
        found += reversed(page.events)
        wanted.before = page.older
    return {
        "events": [views.event(each, console.source.name) for each in found],
        "more": bool(found) and wanted.before is not None,
    }


def _severity(text: str) -> Severity:
    for each in SEVERITIES:
        if each == text:
            return each
    raise UsageError(f"severity: unknown word {text!r}; choose from: {', '.join(SEVERITIES)}")


async def _money(console: Console, _request: Request) -> Any:
    return views.money(await console.source.ask(m.DaemonInfo(id=0), m.DaemonStatus))


async def _agents(console: Console, _request: Request) -> Any:
    found = (await console.source.ask(m.Agents(id=0), m.AgentList)).agents
    return {
        "agents": [{"name": each.name, "description": each.description} for each in found],
        "directory": os.getcwd(),
    }


# ---- what changes something: POSTs, which the gate has checked


async def _act(console: Console, request: Request) -> Any:
    act = actions.ON_RUNS.get(request.path_params["verb"])
    if act is None:
        return json({"error": "there is no such action"}, 404)
    return await act(console.source, console.run(request), await _body(request))


async def _start(console: Console, request: Request) -> Any:
    return await actions.start(console.source, await _body(request))


async def _link(console: Console, request: Request) -> Any:
    return {"link": console.gate.link(request)}


async def _log_out(console: Console, request: Request) -> Any:
    console.gate.log_out(request.state.login)
    return {"said": "logged out"}


async def _log_all_out(console: Console, _request: Request) -> Any:
    console.gate.log_all_out()
    return {"said": "logged out"}


async def _body(request: Request) -> actions.Body:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BODY:
            raise UsageError(f"the body is longer than {MOST_BODY} bytes")
    try:
        return msgspec.json.decode(data or b"{}", type=actions.Body)
    except msgspec.DecodeError as error:
        raise UsageError(f"the body is not a JSON object: {error}") from None


# ---- the application


async def _missing(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("there is no such page\n", 404)


def application(source: Source, gate: Gate, nursery: trio.Nursery) -> Starlette:
    """Return the pages, which show what `source` tells. Background tasks live in `nursery`."""
    console = Console(source, gate, nursery)
    read = {
        "/api/runs/{run}": _run, "/api/runs/{run}/tree": _tree, "/api/runs/{run}/calls": _calls,
        "/api/runs/{run}/live": _live,
        "/api/history": _history, "/api/costs": _costs, "/api/events": _events,
        "/api/money": _money, "/api/agents": _agents,
    }  # fmt: skip
    return Starlette(
        routes=[
            *(Route(path, console.page(name)) for path, name in PAGES.items()),
            Route("/api/stream", console.stream),
            *(Route(path, console.read(handler)) for path, handler in read.items()),
            Route("/api/runs/{run}/{verb}", console.read(_act), methods=["POST"]),
            Route("/api/start", console.read(_start), methods=["POST"]),
            Route("/api/link", console.read(_link), methods=["POST"]),
            Route("/api/logout", console.read(_log_out), methods=["POST"]),
            Route("/api/logout-all", console.read(_log_all_out), methods=["POST"]),
            Route("/sw.js", console.static.worker),
            Route("/static/{name}", console.static.file),
            Route("/static/{version}/{name}", console.static.file),
        ],
        exception_handlers={404: _missing},
    )
