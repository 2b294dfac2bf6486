"""Light structs are msgspec's to the daemon: they write the same bytes, and read the same values."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.protocol import messages as m
from sfad.protocol.light_json import to_json
from sfad.protocol.light_msgpack import LONG, pack, unpack

from .test_messages import REPLIES, REQUESTS

SCRIPT = """
import sys
import sfad.protocol.light
from base64 import b64decode, b64encode
from sfad.protocol import messages as m
from sfad.protocol.structs import asdict, pack, reader, replace, to_json
assert "msgspec" not in sys.modules
for line in sys.stdin:
    base, body = line.split()
    message = reader(getattr(m, base))(b64decode(body))
    assert message == replace(message, id=message.id) and message != replace(message, id=-1)
    if base == "Reply" and type(message) is m.Summarised:
        assert [status.terminal for status in message.summary.by_status] == [True] * len(message.summary.by_status)
    built = type(message)(**asdict(message))
    for data in (pack(message), pack(built), to_json(message)):
        print(b64encode(data).decode())
"""


def light(*words: str, given: str = "") -> str:
    done = subprocess.run([sys.executable, "-c", *words], input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def whole(value: Any) -> Any:
    """A struct as a dict with every field, also those that msgspec leaves out because they have their defaults."""
    if isinstance(value, msgspec.Struct):
        tagged = {"type": value.__struct_config__.tag} if value.__struct_config__.tag else {}
        fields = {name: whole(getattr(value, name)) for name in value.__struct_fields__}
        return tagged | {name: field for name, field in fields.items() if field is not msgspec.UNSET}
    if isinstance(value, list | tuple):
        return [whole(each) for each in value]
    return {key: whole(each) for key, each in value.items()} if isinstance(value, dict) else value


def test_each_message_is_read_and_written_as_msgspec_does() -> None:
    messages: list[m.Request | m.Reply] = [*(r for r in REQUESTS if r.id < 2**63), *REPLIES]
    lines = [f"{type(r).__mro__[1].__name__} {b64encode(m.pack(r)).decode()}\n" for r in messages]
    found = [b64decode(line) for line in light(SCRIPT, given="".join(lines)).split()]
    assert len(found) == 3 * len(messages)
    for message, *written, shown in zip(messages, *(found[at::3] for at in range(3)), strict=True):
        read: Any = m.unpack_request if isinstance(message, m.Request) else m.unpack_reply
        assert [read(body) for body in written] == [message, message]
        assert json.loads(shown) == json.loads(msgspec.json.encode(whole(message)))


WORDS = """
import sys
import sfad.protocol.light
from sfad.protocol.types import Action, Rule, Status
assert Status("lost") is Status.LOST and Status.LOST == "lost" and f"{Status.LOST}" == "lost"
assert Status.LOST.value == "lost" and type(Status.LOST.value) is str and Status.LOST.terminal
assert Rule.LOOP.status is Status.REJECTED_LOOP
print(*Action)
try:
    Action("shoot")
except ValueError as error:
    print(error)
"""


def test_words_are_as_those_of_an_enum() -> None:
    assert light(WORDS).splitlines() == ["terminate pause warn request_increase refuse continue", "'shoot' is not a valid Action"]


BROKEN = """
import sys
import sfad.protocol.light
from sfad.protocol.framing import BadMessage
from sfad.protocol.requests.base import Reply, RunReply, Welcome

from sfad.protocol.structs import reader
read = reader(Reply)
for line in sys.stdin:
    try:
        print(type(read(bytes.fromhex(line))).__name__)
    except BadMessage as error:
        print(error)
"""


def test_what_is_no_reply_is_a_bad_message() -> None:
    welcome = m.pack(m.Welcome(id=1, version=1, daemon="0", pid=1, state_dir="/"))
    bodies = [
        b"",
        b"\xc1",
        b"\x93",
        b"\xa3ab",
        welcome[:-1],
        welcome + b"\0",
        b"\xff",
        b"\x91" * 40_000,
        b"\x81\x80\x01",
        b"\xcb\0",
        b"\xd7\xff\0",
        b"\xc1" * 300_000,
    ]
    wrong: list[Any] = [{}, {"type": []}, {"type": "welcome", "id": 1}, [1], {"type": "done"}]
    bodies += map(msgspec.msgpack.encode, wrong)
    strange = msgspec.msgpack.encode({"type": "surprise", "id": 1})
    said = light(BROKEN, given="".join(f"{body.hex()}\n" for body in [*bodies, strange, welcome])).splitlines()
    assert all(line.startswith("not a message of this protocol: ") for line in said[: len(bodies)])
    assert said[len(bodies) :] == ["Reply", "Welcome"]


TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2500, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary() | TIMES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
@settings(deadline=None, database=None)
def test_values_are_read_and_written_as_msgspec_does(value: Any) -> None:
    body = msgspec.msgpack.encode(value)
    assert unpack(body) == msgspec.msgpack.decode(body) == value
    assert msgspec.msgpack.decode(pack(value)) == value
    assert json.loads(to_json(value)) == json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65_535, 65_536])
def test_each_size_has_its_head(size: int) -> None:
    for value in ("é" * size, b"x" * size, [None] * size, dict.fromkeys(map(str, range(size)))):
        body = pack(value)
        assert msgspec.msgpack.decode(body) == value
        assert unpack(body) == value
        assert body == msgspec.msgpack.encode(value)


def test_a_long_message_is_left_to_msgspec() -> None:
    assert unpack(msgspec.msgpack.encode(["x" * LONG, datetime(1, 1, 1, tzinfo=UTC)]))[1] == datetime(1, 1, 1, tzinfo=UTC)


def test_times_before_1970_and_after_2500() -> None:
    for moment in (
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1),
    ):
        assert unpack(msgspec.msgpack.encode(moment)) == moment


def test_numbers_that_json_has_not_are_null() -> None:
    assert to_json([float("nan"), float("inf")]) == b"[null,null]"


def test_other_values_are_left_to_msgspec() -> None:
    assert to_json({"a": msgspec.Raw(b"[1]"), "b": b"\xff"}) == b'{"a":[1],"b":"/w=="}'
