"""Messages: they come back as they went, and whatever else arrives is `BadMessage`, never another
exception."""

from __future__ import annotations

import gc
import typing
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.features.advice.messages import Advice, Recommend, Recommended
from sfad.features.fleet.messages import (
    FetchFiles,
    FilesKept,
    FilesPacked,
    FilesPart,
    GetFiles,
    PutFiles,
)
from sfad.features.gateway.messages import (
    CallerFound,
    FindCaller,
    GatewaySettings,
    RefusedEgress,
    SilentCall,
    UnaskedRequest,
    UpstreamInfo,
)
from sfad.protocol import messages as m
from sfad.protocol.conversation import LONG, Conversation
from sfad.protocol.encoding import to_json
from sfad.protocol.framing import HEADER, BadMessage, FrameDecoder, request_id
from sfad.protocol.requests.summary import Breach, Costly, Failed, Group, Summary
from sfad.protocol.types import (
    Action,
    After,
    Bound,
    CallInfo,
    Claim,
    ErrorCode,
    Event,
    Limit,
    LimitKind,
    LimitRefusal,
    LimitState,
    Reason,
    Refusal,
    Rule,
    RunInfo,
    Status,
    Survivor,
    Tokens,
    Usage,
)
from tests import all_messages
from tests.tiers import examples
from tests.together import together

R = typing.TypeVar("R", m.Request, m.Reply)

NOW = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
TICK = settings(max_examples=examples(100), deadline=None, database=None)

RUN = RunInfo(
    id="a1", name="é", kind="agent", type=None, status=Status.FAILED, parent_id=None, root_id="a1",
    depth=0, chain=["é"], pid=None, argv=["x", "\\xff"], cwd="/", user="ann", channel="cli",
    exit_code=None, signal=9,
    reason=Reason(kind="limit", message="m", limit_kind="time", threshold=1.0, used=1.5),
    attempts=1,
    limits=[LimitState(kind=LimitKind.TIME, threshold=120.0, action=Action.TERMINATE,
                       source="default", used=1.5)],
    usage=Usage(elapsed_s=0.1, cost_usd=0.5, cost_from="prices", source="stream"), processes=None,
    memory_bytes=None, descendants=0, deadline=NOW, milestone=None, created_at=NOW, started_at=NOW,
    ended_at=None, labels={"k": "v"},
    usage_by_source={"report": Usage(turns=1, source="report"),
                     "stream": Usage(cost_usd=0.5, source="stream")},
    meter="claude",
)  # fmt: skip

REQUESTS: list[m.Request] = [
    m.Hello(id=1, versions=[1, 2], client="sfactl"),
    m.Spawn(id=2**63, argv=[b"x", b"\xff\0"], cwd=b"/\xfe", env=[b"A=\xff"], name="n", tied=True,
            max_depth=Bound(value=3, source="--max-depth"), on_limit=Action.PAUSE, meter="claude",
            limits=[Limit(kind=LimitKind.COST, threshold=2.5, action=Action.WARN,
                          source="--limit cost")],
            claim=Claim(names=["a"], depth=1), labels={"a": "b"}, stdio="inherit", descriptors=3,
            after=[After(run="a1"), After(run="build", ok=True)], group="gpu"),
    m.Recall(id=35, run="a1"),
    m.Stop(id=3, runs=["a1"], signal=2, grace=0.0), m.Pause(id=4, run="a1"),
    m.Resume(id=5, run="a1", limits=[Limit(kind=LimitKind.TURNS, threshold=50)]),
    m.Signal(id=6, run="a1", signal=3), m.Info(id=7, run="a1"), m.Wait(id=8, run="a1", timeout=3.5),
    m.List(id=9, status=[Status.RUNNING], since=1.5, live=True), m.Logs(id=10, run="a1"),
    m.Result(id=11, run="a1", max_bytes=3), m.Logs(id=10, run="a1", form="auto"),
    m.Text(id=22, run="a1", cursor=b"\xff"), m.Result(id=11, run="a1", raw=True),
    m.Send(id=12, run="a1", data=b"\xff", eof=True), m.Watch(id=13, run="a1"), m.DaemonInfo(id=14),
    m.Config(id=15), m.Agents(id=15),
    m.Approve(id=16, run="a1",
              limits=[Limit(kind=LimitKind.COST, threshold=3, source="--limit cost")]),
    m.Deny(id=17, run="a1"),
    m.Report(id=18, model="m", turns=1, input_tokens=2, output_tokens=3, cost_usd=0.5,
             role="planning"),
    m.Reserve(id=19, run="a1", model="m", input_tokens=2, max_output_tokens=3, role="execution"),
    m.ChangeLimits(id=22, run="a1", limits=[Limit(kind=LimitKind.TURNS, threshold=50)]),
    m.Reload(id=23),
    m.Select(id=24, verb="pause", runs=["a1", "reviewer"], labels={"k": "v", "l": ["w", "x"]}),
    m.Prune(id=25, older_than=60.5, keep=3, dry_run=True),
    m.Settle(id=20, reservation="a1-1", input_tokens=2, output_tokens=3, cached_tokens=1),
    Recommend(id=21, run_type="qa"), FindCaller(id=27, uid=0, cgroup=2**63),
    m.AdmitCall(id=28, run="a1", model="m", input_tokens=2, max_output=3, fixed=True, choices=2,
                caches=True),
    m.EndCall(id=29, run="a1", reservation="a1-1", model="m", tokens=Tokens(input=2, output=3),
              status=200, tools=[("Bash", "0f")], first_byte_s=0.5, seconds=1.5, error="e"),
    RefusedEgress(id=34, run="a1", host="h", port=443, why="it is not listed"),
    SilentCall(id=33, run="a1", reservation="a1-1", host="h", silent_s=15.0),
    m.ListCalls(id=30, run="a1", after=NOW, after_number=3), m.Watch(id=31, run="a1", calls=True),
    UnaskedRequest(id=32, run="a1", time=1.5, number=4, upstream="u", path="/v1/embeddings",
                     status=200, seconds=0.5),
    m.Summarise(id=26, since=1.5, by="label", labels={"a": ["b", "c"], "d": "e"}),
    PutFiles(id=35, archive="a" * 32, size=7, offset=3, data=b"\xff", last=True),
    FetchFiles(id=36, run="a1", patch=True), GetFiles(id=37, run="a1", name="b" * 32, offset=5),
]  # fmt: skip

REPLIES: list[m.Reply] = [
    m.Welcome(id=1, version=1, daemon="0.1", pid=2, state_dir="/s", run="a1"),
    m.RunReply(id=2, run=RUN),
    m.Refused(id=3, refused=Refusal(kind=Rule.LOOP, detail="d", message="m", path=["a", "a"]),
              run="a2"),
    m.Stopped(id=4, stopped=["a1"], survivors=[Survivor(pid=1, run_id="a1", why="D")],
              elapsed_s=0.5),
    m.RunList(id=5, runs=[RUN, RUN]),
    m.Recalled(id=6, run="a1",
               request=m.Spawn(id=0, argv=[b"x"], cwd=b"/", env=[],
                               after=[After(run="a2", ok=True)], group="gpu")),
    FilesKept(id=35, offset=4, whole=True), FilesPart(id=37, data=b"\xff"),
    FilesPacked(id=36, name="b" * 32, size=9, directory=b"/\xff", node="n1", asked="n2"),
    m.LogFiles(id=6, run="a1", ended=True), m.LogFiles(id=6, run="a1", ended=True, text=True),
    m.TextPart(id=15, run="a1", text=b"\xff", cursor=b"\0", tools=["Bash: ls"], notes=["n"],
               more=True, ended=True),
    m.ResultText(id=7, run="a1", text="t", truncated=False),
    m.EventPush(id=8, event=Event(type="run_started", time=NOW, seq=3, run_id="a1")),
    m.EventPush(id=8, event=Event(type="x")),
    m.DaemonStatus(id=9, version="0", pid=1, uptime_s=1.0, socket="s", state_dir="d",
                   containment="cgroup", containment_detail="", draining=False, live=0, queued=0,
                   admitted=0, refused=0, connections=1, memory_bytes=2, ledger_bytes=3),
    m.AgentList(id=9,
                agents=[m.AgentInfo(name="a", description="", command=["a"], kind="agent",
                                    type=None, meter="auto", limits=[], stdin=False,
                                    source="built-in")]),
    m.ConfigReply(id=10, settings=[m.Setting(key="a", value=[1, {"b": None}], source="built-in")]),
    m.Reserved(id=13, run="a1", reservation="a1-1", cost_usd=0.01),
    m.Reserved(id=13, run="a1",
               refused=LimitRefusal(scope="tree", whose="a1", limit_kind=LimitKind.COST,
                                    threshold=1, used=0.9, asked=0.2, message="m")),
    Recommended(id=14, runs=20,
                  in_force=[Limit(kind=LimitKind.TURNS, threshold=25, action=Action.TERMINATE)],
                  advice=[Advice(kind=LimitKind.TURNS, p95=12, suggested=15, limit=25, runs=20,
                                 ended=21, failed_share=0.05, least=1, most=100)]),
    m.Summarised(id=18, summary=Summary(
        since=NOW, until=NOW, runs=2, by_status={Status.FAILED: 2}, cost_usd=0.5, tokens=7,
        partial=True, groups=[Group(key=None, runs=2, cost_usd=0.5, tokens=7, failed=2)],
        breaches=[Breach(run_id="a1", limit_kind="turns", used=3, threshold=2)],
        failed=[Failed(run_id="a1", name="a", reason="r")],
        costly=[Costly(run_id="a1", name="a", status=Status.FAILED, cost_usd=0.5, tokens=7,
                       partial=True)])),
    m.CallPage(id=22, run="a1",
               calls=[CallInfo(time=NOW, run_id="a1", number=1, state="refused", upstream="u",
                               model=None)]),
    m.CallPush(id=23,
               call=CallInfo(time=NOW, run_id="a1", number=2, state="ended", upstream="u",
                             model="m", cost_usd=0.5)),
    m.Selected(id=15, runs=["a1"],
               failed=[m.Failure(run="zz", code=ErrorCode.NO_SUCH_RUN, message="m")]),
    GatewaySettings(id=19,
                      upstreams={"a": UpstreamInfo(url="https://a", api="anthropic",
                                                     key_file="/k")}),
    CallerFound(id=20, run="a1",
                  upstreams={"a": UpstreamInfo(url="https://b", api="anthropic")}, egress=["*"]),
    m.CallDecision(id=21, reservation="a1-1", max_output=9),
    m.Reloaded(id=16, files=["/f"],
               changed=[m.Change(key="a", old=1, new=None, source="removed", waits=False)]),
    m.Pruned(id=17, trees=1, runs=2, events=3, files=4, output_bytes=5, ledger_bytes=6),
    m.Done(id=11), m.Error(id=12, code=ErrorCode.BAD_REQUEST, message="m"),
]  # fmt: skip

VALUES_OF: dict[typing.Any, typing.Any] = {
    int: 1,
    str: "a1",
    bytes: b"x",
    float: 1.5,
    bool: True,
    Status: Status.LOST,
    RunInfo: RUN,
}


def sample(kind: type[R]) -> R:
    """A message with nothing but its required fields, for a kind that has no better one above."""
    hints = typing.get_type_hints(kind)
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{field: one_of(hints[field]) for field in required})


def one_of(hint: typing.Any) -> typing.Any:
    return (
        typing.get_args(hint)[0]
        if typing.get_origin(hint) is typing.Literal
        else VALUES_OF.get(hint, [])
    )


REQUESTS += [sample(kind) for kind in all_messages.REQUESTS if kind not in map(type, REQUESTS)]
REPLIES += [sample(kind) for kind in all_messages.REPLIES if kind not in map(type, REPLIES)]
ALL = [*[(r, m.unpack_request) for r in REQUESTS], *[(r, m.unpack_reply) for r in REPLIES]]


@together(("message", "unpack"), ALL)
def test_round_trip(message: m.Request | m.Reply, unpack: typing.Any) -> None:
    (body,) = FrameDecoder(10**6).feed(m.pack_message(message))
    assert unpack(body) == message
    assert type(unpack(body)) is type(message)


@together(("message", "unpack"), ALL)
def test_the_tag_and_the_id_are_on_the_wire(
    message: m.Request | m.Reply, unpack: typing.Any
) -> None:
    raw = msgspec.msgpack.decode(m.pack(message))
    assert raw["type"] == type(message).__struct_config__.tag
    assert raw["id"] == message.id
    assert request_id(m.pack(message)) == message.id
    assert unpack(msgspec.msgpack.encode(raw)) == message


@together("request_", REQUESTS)
def test_an_unknown_field_in_a_request_is_refused(request_: m.Request) -> None:
    raw = msgspec.msgpack.decode(m.pack(request_))
    with pytest.raises(BadMessage, match="surprise"):
        m.unpack_request(msgspec.msgpack.encode(raw | {"surprise": 1}))


def test_an_unknown_field_in_a_claim_is_refused() -> None:
    raw = msgspec.msgpack.decode(m.pack(REQUESTS[1]))
    raw["claim"]["surprise"] = 1
    with pytest.raises(BadMessage, match="surprise"):
        m.unpack_request(msgspec.msgpack.encode(raw))


@together("reply", REPLIES)
def test_an_unknown_field_in_a_reply_is_a_newer_daemons(reply: m.Reply) -> None:
    raw = msgspec.msgpack.decode(m.pack(reply))
    assert m.unpack_reply(msgspec.msgpack.encode(raw | {"surprise": {"deep": [1]}})) == reply


def test_an_unknown_field_in_what_a_reply_holds_is_accepted_too() -> None:
    for reply, key in (
        (m.RunReply(id=2, run=RUN), "run"),
        (m.EventPush(id=8, event=Event(type="x")), "event"),
    ):
        raw = msgspec.msgpack.decode(m.pack(reply))
        raw[key]["surprise"] = 1
        assert m.unpack_reply(msgspec.msgpack.encode(raw)) == reply


def test_a_reply_of_an_unknown_type_is_a_newer_daemons() -> None:
    """A client passes it over if it did not ask for it, and can name the request that it
    answers."""
    assert m.unpack_reply(
        msgspec.msgpack.encode({"type": "surprise", "id": 7, "more": [1]})
    ) == m.Reply(id=7)


@together("reply", REPLIES)
def test_a_reply_is_no_request_and_the_other_way_round(reply: m.Reply) -> None:
    if type(reply).__struct_config__.tag not in {
        type(request).__struct_config__.tag for request in REQUESTS
    }:
        with pytest.raises(BadMessage):
            m.unpack_request(m.pack(reply))


@together(("message", "unpack"), ALL)
def test_every_truncation_is_a_bad_message(
    message: m.Request | m.Reply, unpack: typing.Any
) -> None:
    body = m.pack_message(message)[HEADER:]
    for end in range(len(body)):
        with pytest.raises(BadMessage):
            unpack(body[:end])
        assert isinstance(request_id(body[:end]), int)
    with pytest.raises(BadMessage):
        unpack(body + b"\0")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"type": "pause", "id": 1, "run": 7}, "run"),
        ({"type": "pause", "id": "1", "run": "a"}, "id"),
        ({"type": "pause", "id": 1}, "run"),
        ({"type": "pause", "run": "a"}, "id"),
        ({"type": "nothing", "id": 1}, "nothing"),
        ({"id": 1, "run": "a"}, "type"),
        ({"type": "spawn", "id": 1, "argv": ["text"], "cwd": 3, "env": []}, "argv"),
        (
            {"type": "spawn", "id": 1, "argv": [b"x"], "cwd": b"/", "env": [], "kind": "robot"},
            "robot",
        ),
        (
            {"type": "spawn", "id": 1, "argv": [b"x"], "cwd": b"/", "env": [], "stdio": "other"},
            "other",
        ),
        ({"type": "list", "id": 1, "status": ["done"]}, "done"),
        (
            {
                "type": "spawn",
                "id": 1,
                "argv": [b"x"],
                "cwd": b"/",
                "env": [],
                "limits": [{"kind": "luck", "threshold": 1}],
            },
            "luck",
        ),
        (
            {
                "type": "resume",
                "id": 1,
                "run": "a1",
                "limits": [{"kind": "turns", "threshold": "5"}],
            },
            "threshold",
        ),
        ({"type": "report", "id": 1, "turns": 1.5}, "turns"),
        ({"type": "report", "id": 1, "role": "both"}, "both"),
        ({"type": "reserve", "id": 1, "model": "m", "input_tokens": 1}, "max_output_tokens"),
        ([1, 2], "object"),
        (None, "object"),
    ],
)
def test_what_is_wrong_is_named(raw: object, words: str) -> None:
    with pytest.raises(BadMessage, match=words):
        m.unpack_request(msgspec.msgpack.encode(raw))


def test_bad_utf8() -> None:
    good = m.pack(m.Pause(id=1, run="abcd"))
    bad = good.replace(b"abcd", b"\xff\xfe\xff\xfe")
    with pytest.raises(BadMessage):
        m.unpack_request(bad)
    assert request_id(bad) in {0, 1}


@pytest.mark.parametrize("unpack", [m.unpack_request, m.unpack_reply])
@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a", b"\xdd\0\0\0\1"])
def test_deep_nesting_even_in_what_is_skipped(unpack: typing.Any, nest: bytes) -> None:
    deep = nest * 100_000 + b"\xc0"
    for body in (
        deep,
        b"\x83\xa4type\xa4done\xa2id\1\xa1x" + deep,
        b"\x83\xa4type\xa6status\xa2id\1\xa1x" + deep,
    ):
        with pytest.raises(BadMessage):
            unpack(body)
        assert request_id(body) in {0, 1}


@pytest.mark.parametrize(
    "kind",
    [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"],
    ids=["array", "map", "text", "bytes", "extension"],
)
def test_an_announced_size_is_not_allocated(kind: bytes) -> None:
    header = kind + b"\xff\xff\xff\xff\1"
    for body in (
        header,
        b"\x84\xa4type\xa5spawn\xa2id\1\xa4argv" + header,
        b"\x83\xa4type\xa6config\xa2id\1\xa8settings" + header,
    ):
        for unpack in (m.unpack_request, m.unpack_reply):
            with pytest.raises(BadMessage):
                unpack(body)


def test_a_key_that_cannot_be_hashed_is_a_bad_message() -> None:
    """A map as the key of a map, in the one place where a reply holds anything."""
    setting = b"\x83\xa3key\xa1k\xa6source\xa1s\xa5value\x81\x81\1\2\3"
    body = b"\x83\xa4type\xa6config\xa2id\1\xa8settings\x91" + setting
    with pytest.raises(BadMessage):
        m.unpack_reply(body)


def check_anything(body: bytes) -> None:
    """Either a message or `BadMessage`; and always an id."""
    for unpack in (m.unpack_request, m.unpack_reply):
        with suppress(BadMessage):
            assert unpack(body).id is not None
    assert isinstance(request_id(body), int)


@given(st.binary(max_size=200))
@TICK
def test_random_bytes(body: bytes) -> None:
    check_anything(body)


@given(st.sampled_from([m.pack(message) for message, _ in ALL]), st.data())
@settings(max_examples=examples(250), deadline=None, database=None)
def test_bytes_changed_at_random(body: bytes, data: st.DataObject) -> None:
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check_anything(bytes(changed))


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats())
LEAVES = st.one_of(NUMBERS, st.text(max_size=8), st.binary(max_size=8))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.sampled_from([message for message, _ in ALL]), st.data())
@settings(max_examples=examples(150), deadline=None, database=None)
def test_values_of_any_type(message: m.Request | m.Reply, data: st.DataObject) -> None:
    raw = msgspec.msgpack.decode(m.pack(message))
    raw[data.draw(st.sampled_from([*type(message).__struct_fields__, "type"]))] = data.draw(VALUES)
    check_anything(msgspec.msgpack.encode(raw))


SPAWNS = st.builds(
    m.Spawn,
    id=st.integers(0, 2**64 - 1),
    argv=st.lists(st.binary()),
    cwd=st.binary(),
    env=st.lists(st.binary()),
    limits=st.lists(
        st.builds(Limit, kind=st.sampled_from(LimitKind), threshold=st.floats(allow_nan=False))
    ),
    name=st.none() | st.text(),
    labels=st.dictionaries(st.text(), st.text()),
)


@given(SPAWNS)
@settings(max_examples=examples(100), deadline=None, database=None)
def test_operating_system_strings_come_through_unchanged(spawn: m.Spawn) -> None:
    assert m.unpack_request(m.pack(spawn)) == spawn


def test_the_type_may_stand_anywhere() -> None:
    """msgspec writes it first, where it is looked for first; clients in other languages need
    not."""
    for named in ({"id": 1, "run": "a1", "type": "info"}, {"type": "info", "id": 1, "run": "a1"}):
        for _ in range(2):  # the first makes the decoder
            assert m.unpack_request(msgspec.msgpack.encode(named)) == m.Info(id=1, run="a1")


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_after_a_long_reply_as_before(collects: bool) -> None:
    reply = m.Error(id=1, code=ErrorCode.INTERNAL, message="x" * LONG)
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        assert list(Conversation().receive(m.pack_message(reply))) == [reply]
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()


def test_defaults_are_not_sent() -> None:
    assert msgspec.msgpack.decode(m.pack(m.Stop(id=1))) == {"type": "stop", "id": 1}
    assert "pid" not in msgspec.msgpack.decode(m.pack(RUN))
    # what a person or a script reads is whole: unknown is null, never missing
    assert msgspec.json.decode(to_json(RUN))["pid"] is None


@together("reply", REPLIES)
def test_json_has_each_field(reply: m.Reply) -> None:
    """Also those that have their defaults, and are not sent: a program finds each."""
    shown = to_json(reply)
    found = msgspec.json.decode(shown)
    assert list(found) == [
        "type",
        *(field for field in reply.__struct_fields__ if getattr(reply, field) is not msgspec.UNSET),
    ]
    assert msgspec.json.decode(shown, type=type(reply)) == reply


def test_json_has_each_field_of_what_a_struct_holds() -> None:
    found = msgspec.json.decode(to_json({"events": [Event(type="x")], "runs": {"a1": RUN}}))
    assert list(found["events"][0]) == [
        field for field in Event.__struct_fields__ if field not in ("time", "seq")
    ]
    assert list(found["runs"]["a1"]) == list(RUN.__struct_fields__)


class Renamed(msgspec.Struct, omit_defaults=True):
    fix: str = msgspec.field(default="", name="mend")


def test_json_has_a_field_under_its_name_on_the_wire() -> None:
    assert to_json(Renamed()) == b'{"mend":""}'


def test_a_run_of_an_older_daemon_has_no_holds() -> None:
    message = m.RunReply(id=2, run=RUN)
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    older["run"].pop("holds", None)
    assert m.unpack_reply(msgspec.msgpack.encode(older)) == message
