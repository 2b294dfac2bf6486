"""The JSON Schema of what each verb prints with `--json`: docs/json.schema.json.

Structs are described by msgspec; what a verb puts together by hand has a `TypedDict` here. A test
validates what verbs really print (tests/docs/test_json_schemas.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NotRequired, TypedDict, get_args, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from sfactl.commands.doctor import Finding
from sfactl.commands.shim import InstalledShim
from sfactl.sessions.asking import SessionView
from sfactl.showing.lines import Line
from sfactl.showing.waiting import Waiting
from sfad.features.advice.messages import Recommended
from sfad.features.fleet.messages import FleetNode, FleetState
from sfad.features.hooks.messages import HookTested
from sfad.protocol import messages as m
from sfad.protocol.requests.base import Reply
from sfad.protocol.requests.daemon import HookState, OnEndState, Setting
from sfad.protocol.requests.starting import AgentInfo
from sfad.protocol.requests.summary import Summary
from sfad.protocol.requests.windows import SubscriptionInfo
from sfad.protocol.types import (
    CallInfo,
    Event,
    LimitRefusal,
    Reason,
    Refusal,
    RunInfo,
    Status,
)

from .protocol import field_docs

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Refused(TypedDict):
    refused: Refusal


class Unlanded(TypedDict):
    files: int
    commits: int
    kept: NotRequired[str]
    aside: NotRequired[list[str]]


class Unlike(TypedDict):
    what: str
    run: str
    here: str


class InfoMore(TypedDict):
    line: NotRequired[Line]
    timeline: NotRequired[list[Event]]
    unlike_here: NotRequired[list[Unlike]]
    unlanded: NotRequired[Unlanded]


class Why(TypedDict):
    id: str
    status: Status
    why: str
    reason: Reason | None
    line: NotRequired[Line]
    unlanded: NotRequired[Unlanded]


class Sum(TypedDict):
    runs: int
    cost_usd: float | None
    tokens: int | None
    partial: bool
    at_most: bool


class OfFleet(TypedDict):
    nodes: NotRequired[list[str]]
    unanswered: NotRequired[list[str]]


class WithNode(TypedDict):
    node: NotRequired[str | None]


class ListMore(OfFleet):
    sum: NotRequired[Sum]
    truncated: NotRequired[bool]
    queued: NotRequired[int]


class Nested(TypedDict):
    run: RunInfo
    children: list[Nested]


class Tree(TypedDict):
    tree: list[Nested]


class OutputLine(TypedDict):
    stream: Literal["stdout", "stderr"]
    text: str
    run: NotRequired[str]
    time: NotRequired[str | None]
    not_after: NotRequired[str]


class CheckLine(TypedDict):
    run: str
    attempt: int
    check: int | None
    command: str | None
    text: str


class Sent(TypedDict):
    run: str
    sent: int
    eof: NotRequired[bool]


class MessageSent(TypedDict):
    run: str
    sent: str
    continued_by: NotRequired[str]


class Sessions(TypedDict):
    sessions: list[SessionView]


class AgentMore(TypedDict):
    program: str | None


class Diff(TypedDict):
    id: str
    worktree: str | None
    branch: str | None
    diff: str


class Landed(TypedDict):
    id: str
    landed: Literal["merge", "squash", "rebase", "patch", "nothing"]
    onto: str | None
    commit: str | None
    committed: bool
    files: list[str]
    notes: list[str]


class NotLanded(TypedDict):
    id: str
    landed: Literal["refused"]
    files: list[str]
    why: str


class Fetched(TypedDict):
    run: str
    directory: str
    added: list[str]
    changed: list[str]
    deleted: list[str]
    left_out: list[str]


class Plans(OfFleet):
    accounts: list[SubscriptionInfo]


class SummaryMore(OfFleet):
    waiting: list[Waiting]


class Reserved(TypedDict):
    reservation: str | None
    run: str
    cost_usd: float | None


class ReservedReply(TypedDict):
    reserved: Reserved


class ReservationRefused(TypedDict):
    refused: LimitRefusal


class Doctor(TypedDict):
    findings: list[Finding]
    containment: str | None


class Report(TypedDict):
    report: str


class Settings(TypedDict):
    settings: list[Setting]


class Drained(TypedDict):
    node: str
    drained: bool


class Forgotten(TypedDict):
    node: str
    runs: list[str]


class Nodes(TypedDict):
    nodes: list[FleetNode]
    trouble: str | None


class Hooks(TypedDict):
    hooks: list[HookState]
    on_ends: list[OnEndState]


class PruneMore(TypedDict):
    dry_run: bool
    worktrees_removed: list[str]
    worktrees_saved: list[dict[str, str]]
    worktrees_lost: list[dict[str, str]]
    worktrees_kept: list[dict[str, str]]
    worktrees_failed: list[dict[str, str]]
    branches_kept: list[dict[str, str]]


class Shims(TypedDict):
    directory: str
    daemon: bool
    login_shell: bool | None
    profile_line: str | None
    shims: list[InstalledShim]


PARTS: dict[str, Sequence[type]] = {}
"""What the types that `put_together` has made consist of."""


def put_together(name: str, *parts: type, without: Iterable[str] = (), **more: Any) -> Any:
    """Return a `TypedDict` of the fields of these and `more`, without those that each reply has."""
    fields: dict[str, Any] = {}
    PARTS[name] = parts
    for kind in parts:
        hints = get_type_hints(kind, include_extras=True)
        known = getattr(kind, "__struct_fields__", hints)
        left_out = {*without, *(Reply.__struct_fields__ if issubclass(kind, Reply) else ())}
        fields |= {field: hints[field] for field in known if field not in left_out}
    return TypedDict(name, fields | more)  # type: ignore[operator]


def content(kind: type[Struct]) -> Any:
    """Return the type of a reply's content."""
    return put_together(f"{kind.__name__}Content", kind)


INFO: Any = put_together("Info", RunInfo, InfoMore)
ROW: Any = put_together("Row", RunInfo, WithNode)
AGENT: Any = put_together("Agent", AgentInfo, AgentMore)
STOPPED = content(m.Stopped)

VERBS: dict[str, tuple[Any, ...]] = {
    "run": (RunInfo, Refused),
    "spawn": (RunInfo, Refused),
    "continue": (RunInfo, Refused),
    "rerun": (RunInfo, Refused),
    "session delegate": (SessionView, Refused),
    "session info": (SessionView,),
    "session list": (Sessions,),
    "session log": (content(m.TranscriptText),),
    "session send": (MessageSent,),
    "session spawn": (SessionView, Refused),
    "session stop": (STOPPED,),
    "agents": (put_together("Agents", agents=list[AGENT]), AGENT),
    "list": (put_together("Runs", ListMore, runs=list[ROW]),),
    "tree": (Tree,),
    "info": (INFO,),
    "why": (Why,),
    "logs": (OutputLine, CheckLine),
    "result": (content(m.ResultText),),
    "summary": (put_together("Totals", Summary, SummaryMore, without=("costly",)),),
    "events": (Event,),
    "wait": (RunInfo,),
    "stop": (STOPPED,),
    "pause": (RunInfo,),
    "resume": (RunInfo,),
    "limit": (RunInfo,),
    "approve": (RunInfo,),
    "deny": (RunInfo,),
    "send": (Sent,),
    "diff": (Diff,),
    "land": (Landed, NotLanded),
    "fetch": (Fetched,),
    "calls": (CallInfo,),
    "plans": (Plans,),
    "recommend": (content(Recommended),),
    "report": (RunInfo,),
    "reserve": (ReservedReply, ReservationRefused),
    "settle": (RunInfo,),
    "status": (content(m.DaemonStatus),),
    "doctor": (Doctor, Report),
    "config": (Settings,),
    "fleet drain": (Drained,),
    "fleet forget": (Forgotten,),
    "fleet nodes": (Nodes,),
    "fleet status": (
        put_together(
            "Fleet", FleetState, without=("raylet", "version", "python", "ray"), nodes=list[str]
        ),
    ),
    "hooks list": (Hooks,),
    "hooks try": (content(HookTested),),
    "prune": (put_together("PruneContent", m.Pruned, PruneMore),),
    "reload": (content(m.Reloaded),),
    "shim": (Shims,),
}
"""What each verb prints: one of these."""

WITHOUT = ("completion", "demo")
"""Verbs that take `--json` and print none."""

LINES = ("calls", "events", "logs")
"""Verbs that print any number of objects, each on a line of its own. Of several runs, other verbs
print one for each, too."""


def schema() -> dict[str, Any]:
    """Return the schema: `#/verbs/VERB` for each verb."""
    kinds = list(dict.fromkeys(kind for kinds in VERBS.values() for kind in kinds))
    found, components = msgspec.json.schema_components(kinds)
    of_kind = dict(zip(kinds, found, strict=True))
    structs = {each.__name__: each for each in _structs(kinds)}
    for name, each in components.items():
        _finish(each, structs.get(name), PARTS.get(name, ()))
    return {
        "$schema": DIALECT,
        "$id": "https://sfad.invalid/json.schema.json",
        "title": "What sfactl prints with --json",
        "verbs": {
            verb: {
                "description": "Any number of objects, each on a line of its own."
                if verb in LINES
                else "One object on one line; of several runs, one for each.",
                "anyOf": [of_kind[kind] for kind in kinds],
            }
            for verb, kinds in VERBS.items()
        },
        "$defs": components,
    }


def _finish(described: dict[str, Any], kind: type[Struct] | None, parts: Sequence[type]) -> None:
    """Say of each field what its docstring says; and of a struct's, that they are always there:
    JSON has all fields, also those with their defaults."""
    fields = described.get("properties", {})
    bases = [base for each in (kind, *parts) if each is not None for base in each.__mro__]
    documented = {name: text for each in bases for name, text in _docs(each).items()}
    described.pop("default", None)
    for name, field in fields.items():
        field.pop("default", None)
        if name in documented and "$ref" not in field:
            field["description"] = documented[name].replace("\n", " ")
    if kind is not None:
        hints = get_type_hints(kind)
        described["required"] = [name for name in fields if UnsetType not in get_args(hints[name])]


def _docs(kind: type) -> dict[str, str]:
    return field_docs(kind) if kind.__module__.startswith("sfa") else {}


def _structs(kinds: Iterable[Any]) -> set[type[Struct]]:
    """Return all structs within these types."""
    seen, todo = set[Any](), list(kinds)
    while todo:
        each = todo.pop()
        if each in seen:
            continue
        seen.add(each)
        todo += get_args(each)
        if getattr(each, "__module__", "").startswith(("sfa", "tests")):
            todo += get_type_hints(each, include_extras=True).values()
    return {each for each in seen if isinstance(each, type) and issubclass(each, Struct)}


def text() -> str:
    """Return the file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
