"""Compare protocol.md with the code: that every message is there, bounds and ranges, bytes. Run its
example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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
from sfad.features.fleet.files.kept import MOST_UNCLAIMED
from sfad.features.fleet.messages import PIECE
from sfad.features.gateway import process as gateway_process
from sfad.features.session.messages import StartSession
from sfad.host import tasks
from sfad.host.linux import descriptors
from sfad.host.linux.descriptors import Need
from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REPLY, MAX_REQUEST, VERSION, FrameDecoder
from sfad.protocol.types import ErrorCode
from sfad.runs import live
from sfad.storage.ledger.queries import MAX_EVENTS, MAX_WALKED
from tests import all_messages
from tests.docs import notation
from tests.docs.examples import EXAMPLES
from tests.docs.pages import blocks, generated, rows, sections, spans, text_of
from tests.docs.protocol import answers, field_docs, fields_of, nested, prose, tag
from tests.harness import Daemon
from tests.together import together

PAGE = text_of("protocol.md")


def chapter(title: str) -> str:
    """Return the text between one `##` heading and the next."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def part(title: str) -> dict[str, str]:
    """Return the sections of a chapter."""
    return sections(chapter(title))


REQUESTS = part("Requests") | part("Messages of the gateway")


@together("struct", all_messages.REQUESTS)
def test_each_request_is_described_and_names_its_reply(struct: type[m.Request]) -> None:
    assert tag(struct) in REQUESTS
    assert answers(struct) or struct is StartSession  # its docstring refers to that of `Spawn`
    assert [field.type for field in msgspec.structs.fields(struct) if field.name == "id"] == [int]


@together("struct", all_messages.REPLIES)
def test_each_reply_is_described_once(struct: type[m.Reply]) -> None:
    below = [title for title, text in REQUESTS.items() if f"\nReply `{tag(struct)}`:\n" in text]
    assert len(below) + (tag(struct) in part("Shared replies")) == 1


def test_a_docstring_becomes_the_words_of_the_page() -> None:
    said = (
        "`None`: as `Spawn.tied` of `RunInfo`,\n    answered by `RunReply` (docs/limits.md#kinds)."
    )
    assert (
        prose(said)
        == "Nil: as `tied` of `spawn` of `RunInfo`, answered by `run` ([limits](limits.md#kinds))."
    )
    assert field_docs(m.Wait)["timeout"] == "Seconds; 0 answers at once."
    assert fields_of(m.Wait) == {"run": "str", "timeout": "float?", "tie": "bool = false"}


def test_which_types_leave_defaults_out() -> None:
    # the page says which, beside the messages themselves
    kinds = (*all_messages.REQUESTS, *all_messages.REPLIES)
    assert all(struct.__struct_config__.omit_defaults for struct in kinds)
    assert {tag(struct) for struct in nested() if struct.__struct_config__.omit_defaults} == {
        "RunInfo",
        "Usage",
        "LimitState",
        "Reason",
        "Event",
        "CallInfo",
    }


def test_words() -> None:
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
        "time that a `spawn` waits for the gateway to begin its work": (
            f"{gateway_process.BEGINNING:g} s"
        ),
        "body of a request": f"{MAX_REQUEST // mib} MiB",
        "body of a reply": f"{MAX_REPLY // mib} MiB",
        "replies and events that a client leaves unread": f"{connection.MAX_UNSENT // mib} MiB",
        "watches of one connection": f"{following.MAX_EACH}",
        "requests of one connection handled in one go": f"{tasks.ROUND_REQUESTS}",
        "requests of one tree, or of one user outside any run, handled in one go": (
            f"{dispatch.TURN_TIME * 1000:g} ms"
        ),
        "bytes that wait for a run's stdin (`send`)": f"{live.MAX_PENDING // mib} MiB",
        "bytes of a piece of files (`put_files`)": f"{PIECE // mib} MiB",
        "bytes of all files of a run (`put_files`, `fetch_files`)": "`fleet.ship_max`",
        "archives of one user that no run has named": f"{MOST_UNCLAIMED}",
        "ended runs in a page of a `list`": f"{MAX_ROWS:,}".replace(",", " "),
        "rows, or entries of an index, that a page of a `list` looks at": (
            f"{MAX_WALKED:,}".replace(",", " ")
        ),
        "events that a page of `events` looks at": f"{MAX_EVENTS:,}".replace(",", " "),
        "bytes of output read for a `result`, and of its text": f"{MAX_RESULT // mib} MiB",
    }
    assert {row[0]: row[1] for row in rows(shared)} == {
        "bound": "value",
        "connections, and descriptors that wait in them": f"{shares.MAX_CONNECTIONS}",
        "bytes of requests that are unfinished or wait for their turn": (
            f"{shares.MAX_PARTIAL // mib} MiB"
        ),
        "bytes of unread replies and events": f"{shares.MAX_UNREAD // mib} MiB",
        "requests that are not answered": f"{shares.MAX_REQUESTS:,}".replace(",", " "),
        "watches": f"{shares.MAX_WATCHES}",
        "of these, `watch_runs`": f"{shares.MAX_RUN_FEEDS}",
    }
    assert [shares.FRACTIONS[scope] for scope in ("run", "tree", "user", "others", "owner")] == [
        1 / 8,
        1 / 4,
        1 / 2,
        3 / 4,
        1,
    ]
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
        {item.split(":")[0]: item for item in REQUESTS[name].split("\n- `")}
        for name in ("spawn", "stop", "result")
    )
    assert f": 1 to {MAX_ATTEMPTS}." in spawn["attempts"]
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


def test_the_example(daemon: Daemon, tmp_path: Path) -> None:
    [program] = [block.text for block in blocks(PAGE) if block.language == "python"]
    file = tmp_path / "client.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, file],
        env=os.environ | {"SFAD_SOCKET": str(daemon.socket)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("completed\n", "")
