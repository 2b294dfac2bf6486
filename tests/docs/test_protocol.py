"""Compare protocol.md with the code: bytes, fields, types, defaults, bounds."""

from __future__ import annotations

import re
import types
import typing
from datetime import datetime
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from sfad.core.state.access import VERBS
from sfad.core.state.policy import MAX_ATTEMPTS, MAX_RETRY_DELAY
from sfad.core.state.run import MAX_GRACE
from sfad.daemon.server import clients, connection, dispatch, shares
from sfad.daemon.server.results import MAX_RESULT
from sfad.daemon.server.verbs import following
from sfad.daemon.server.verbs.looking import MAX_ROWS
from sfad.daemon.server.verbs.steering import MAIN_SIGNALS
from sfad.host import descriptors
from sfad.host.descriptors import Need
from sfad.protocol import messages as m
from sfad.protocol import types as t
from sfad.protocol.framing import MAX_REPLY, MAX_REQUEST, VERSION, FrameDecoder
from sfad.protocol.requests import fleet, gateway
from sfad.protocol.requests.advice import Advice, Breach, Costly, Failed, Group, Summary
from sfad.protocol.types import ErrorCode
from sfad.runs import live
from tests.docs import notation
from tests.docs.examples import EXAMPLES
from tests.docs.pages import blocks, generated, rows, sections, spans, text_of

PAGE = text_of("protocol.md")
NESTED = (
    t.Bound, t.Claim, t.Limit, t.LimitState, t.RunInfo, t.Reason, t.Usage, t.Refusal, t.LimitRefusal, t.BudgetState, t.QuotaState,
    t.Survivor, t.QueueState, t.After,
    t.ApiSilence, t.ApiTrouble, t.CallInfo, t.Lowered, t.Repetition, Advice, Summary, Group, Breach, Failed, Costly,
    m.GatewayInfo, m.HookState, m.OnEndState, t.AlertState, t.Event, m.Setting,
    t.Isolation, t.FleetPlace, t.Grant, t.Placing, m.AgentInfo, m.Change, m.Failure, m.OutputTime,
)  # fmt: skip

_OWN = (gateway.__name__, fleet.__name__)
ASKED = [struct for struct in m.REQUESTS if struct.__module__ not in _OWN]
TOLD = [struct for struct in m.REPLIES if struct.__module__ not in _OWN]
"""Messages of any client. The page leaves out those between the daemon and its own gateway, and those of the fleet."""

Struct = type[msgspec.Struct]


def chapter(title: str) -> str:
    """Return the text between one `##` heading and the next."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def part(title: str) -> dict[str, str]:
    """Return the sections of a chapter."""
    return sections(chapter(title))


REQUESTS = part("Requests")
SHARED, TYPES = part("Shared replies"), part("Types")


def tag(struct: Struct) -> str:
    """Return the heading of a struct's section."""
    return str(struct.__struct_config__.tag or struct.__name__)


WORDS: dict[Any, str] = {
    int: "int", float: "float", str: "str", bytes: "bin", bool: "bool", type(None): "nil", Any: "any", datetime: "timestamp"
}  # fmt: skip


def type_of(hint: Any) -> str:
    """Return a field's type as the page writes it."""
    if get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(type_of(each) for each in get_args(hint) if each is not msgspec.UnsetType)
    if get_origin(hint) in (list, tuple):
        return f"array of {type_of(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        key, value = (f"({part})" if " or " in part else part for part in map(type_of, get_args(hint)))
        return f"map of {key} to {value}"
    if get_origin(hint) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(hint))
    return WORDS.get(hint) or str(hint.__name__)


def shown(hint: Any, field: msgspec.structs.FieldInfo) -> str:
    """Return a field's type and default as the page writes them."""
    kind, default = type_of(hint), field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    match default:
        case msgspec.NODEFAULT:
            return kind
        case msgspec.UNSET:
            return f"{kind}, or absent"
        case None:
            inner = kind.removesuffix(" or nil")
            return f"({inner})?" if " " in inner else f"{inner}?"
        case msgspec.Struct():
            return f"{kind} = {{}}"
    return f"{kind} = {msgspec.json.encode(default).decode()}"


def declared(text: str) -> dict[str, str]:
    """Return type and default by field, from the items of a list that begin with `name: type`."""
    items = re.findall(r"^- ((?:`\w+: [^`]+`(?:,\s+)?)+)", text, re.MULTILINE)
    return dict(span.split(": ", 1) for item in items for span in spans(item))


def fields_of(struct: Struct) -> dict[str, str]:
    """Return the same from the code, without the `id` that every message has."""
    hints = get_type_hints(struct)
    fields = [field for field in msgspec.structs.fields(struct) if field.name != "id" or struct in NESTED]
    return {field.name: shown(hints[field.name], field) for field in fields}


def request(name: str) -> dict[str, str]:
    """Return the fields of a request: its own, and the shared ones that its section names."""
    text = REQUESTS[name].partition("Reply `")[0]
    named = re.search(r"Shared\s+fields:([^.;]+)", text)
    shared = declared(REQUESTS["Shared fields"])
    return declared(text) | {field: shared[field] for field in (spans(named[1]) if named else ())}


def replies() -> dict[str, dict[str, str]]:
    """Return the fields of each reply: below its request, or among the shared ones."""
    own = [found for text in REQUESTS.values() for found in re.findall(r"Reply `(\w+)`(.*)", text, re.DOTALL)]
    return {name: declared(text) for name, text in [*own, *SHARED.items()]}


@pytest.mark.parametrize("struct", ASKED, ids=tag)
def test_requests(struct: type[m.Request]) -> None:
    assert request(tag(struct)) == fields_of(struct)


@pytest.mark.parametrize("struct", [*m.REQUESTS, *m.REPLIES], ids=tag)
def test_every_message_has_an_id(struct: type[m.Request] | type[m.Reply]) -> None:
    [field] = [field for field in msgspec.structs.fields(struct) if field.name == "id"]
    assert shown(get_type_hints(struct)["id"], field) == "int"


@pytest.mark.parametrize("struct", TOLD, ids=tag)
def test_replies(struct: type[m.Reply]) -> None:
    assert replies()[tag(struct)] == fields_of(struct)


@pytest.mark.parametrize("struct", NESTED, ids=tag)
def test_types(struct: Struct) -> None:
    assert declared(TYPES[tag(struct)]) == fields_of(struct)


def test_every_section_describes_a_type_of_the_code() -> None:
    assert REQUESTS.keys() == {tag(struct) for struct in ASKED} | {"Shared fields"}
    assert replies().keys() == {tag(struct) for struct in TOLD}
    assert TYPES.keys() == {tag(struct) for struct in NESTED} | {"Enumerations"}


def test_which_types_leave_defaults_out() -> None:
    # the page says: the messages themselves, `Reason`, `Event` and `CallInfo`
    assert all(struct.__struct_config__.omit_defaults for struct in (*m.REQUESTS, *m.REPLIES))
    assert {tag(struct) for struct in NESTED if struct.__struct_config__.omit_defaults} == {"Reason", "Event", "CallInfo"}


def test_enumerations() -> None:
    words = {re.sub(r"[][]|\(.*\)", "", row[0]): spans(row[1]) for row in rows(TYPES["Enumerations"])}
    assert words == {"type": [], **{kind.__name__: list(kind) for kind in (t.Status, t.Rule, t.LimitKind, t.Action)}}
    assert [row[0].strip("`") for row in rows(chapter("Errors"))][1:] == list(ErrorCode)
    assert set(spans(REQUESTS["spawn"])) >= VERBS
    assert all(signal.name in REQUESTS["signal"] for signal in MAIN_SIGNALS)


def test_bounds() -> None:
    alone, shared = chapter("Bounds and timeouts").split("### Shares")
    bounds = {row[0]: row[1] for row in rows(alone)}
    mib = 1024 * 1024
    assert bounds == {
        "bound": "value",
        "time for the handshake": f"{clients.FRAME_TIME:g} s",
        "time for the rest of a frame": f"{clients.FRAME_TIME:g} s",
        "body of a request": f"{MAX_REQUEST // mib} MiB",
        "body of a reply": f"{MAX_REPLY // mib} MiB",
        "replies and events that a client leaves unread": f"{connection.MAX_UNSENT // mib} MiB",
        "watches of one connection": f"{following.MAX_EACH}",
        "requests of one connection handled in one go": f"{dispatch.TURN_REQUESTS}",
        "requests of one tree, or of one user outside any run, handled in one go": f"{dispatch.TURN_TIME * 1000:g} ms",
        "bytes that wait for a run's stdin (`send`)": f"{live.MAX_PENDING // mib} MiB",
        "ended runs in a page of a `list`": f"{MAX_ROWS:,}".replace(",", " "),
        "bytes of output read for a `result`, and of its text": f"{MAX_RESULT // mib} MiB",
    }
    assert {row[0]: row[1] for row in rows(shared)} == {
        "bound": "value",
        "connections, and descriptors that wait in them": f"{shares.MAX_CONNECTIONS}",
        "bytes of requests that are unfinished or wait for their turn": f"{shares.MAX_PARTIAL // mib} MiB",
        "bytes of unread replies and events": f"{shares.MAX_UNREAD // mib} MiB",
        "requests that are not answered": f"{shares.MAX_REQUESTS:,}".replace(",", " "),
        "watches": f"{shares.MAX_WATCHES}",
        "of these, `watch_runs`": f"{shares.MAX_RUN_FEEDS}",
    }
    assert [shares.FRACTIONS[scope] for scope in ("run", "tree", "user", "others", "owner")] == [1 / 8, 1 / 4, 1 / 2, 3 / 4, 1]
    prose = " ".join(PAGE.split())
    assert f"a run may have {shares.LEAST_CONNECTIONS} in any" in prose
    reserves = [need * descriptors.RESERVE for need in (Need.CLIENT, Need.RUN, Need.OWNER)]
    assert re.findall(r"\(below (\d+)", prose) == [str(reserve) for reserve in reserves]
    assert f"at least {descriptors.LEAST_RESERVE}." in prose
    assert f"({MAX_REQUEST:,} bytes)".replace(",", " ") in prose
    assert f"({MAX_REPLY:,} bytes)".replace(",", " ") in prose
    assert f"describes version {VERSION}" in prose
    assert f"At most {m.MAX_DESCRIPTORS} descriptors" in prose


def test_ranges() -> None:
    spawn, stop, result = (
        {item.split(":")[0]: item for item in REQUESTS[name].split("\n- `")} for name in ("spawn", "stop", "result")
    )
    assert f": 1 to {MAX_ATTEMPTS}:" in spawn["attempts"]
    assert f", 0 to {MAX_RETRY_DELAY:g};" in spawn["retry_delay"]
    assert f", 0 to {MAX_GRACE:g};" in spawn["grace"]
    assert f", 0 to {MAX_GRACE:g};" in stop["grace"]
    assert f"cut to 1 to {MAX_RESULT:,}".replace(",", " ") in result["max_bytes"]


def example(name: str) -> tuple[Any, bytes]:
    """Return the value on the page, and the frame beside it."""
    shown, octets = blocks(generated(PAGE)[name])
    return notation.read(shown.text), bytes.fromhex(octets.text)


def typed(name: str, body: bytes) -> m.Request | m.Reply:
    """Return the message in a frame's body."""
    return m.unpack_request(body) if isinstance(EXAMPLES[name], m.Request) else m.unpack_reply(body)


@pytest.mark.parametrize("name", EXAMPLES)
def test_bytes_and_message_are_the_same(name: str) -> None:
    shown, frame = example(name)
    [body] = FrameDecoder(MAX_REPLY).feed(frame)
    assert msgspec.msgpack.decode(body) == shown
    message = typed(name, body)
    assert message == EXAMPLES[name]
    assert m.pack_message(message) == frame
    assert m.pack_message(msgspec.convert(shown, type(EXAMPLES[name]))) == frame
