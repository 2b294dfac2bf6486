"""Writes what later releases must load."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from sfactl.exits import MEANINGS
from sfad import __version__
from sfad.features.metrics.table import METRICS
from sfad.protocol.encoding import to_json
from sfad.protocol.event_types import EventType
from sfad.protocol.framing import VERSION
from sfad.protocol.holds import HOLDS
from sfad.protocol.messages import pack_message
from sfad.protocol.types import (
    Action,
    CallInfo,
    ErrorCode,
    Event,
    LimitKind,
    Rule,
    RunInfo,
    Status,
)
from sfad.storage.ledger.opening import open_past
from sfad.storage.ledger.queries import Reader
from sfad.storage.ledger.rows import (
    RunExtra,
    call_op,
    charge_op,
    event_op,
    insert_op,
    plan_op,
    statements,
)
from sfad.storage.ledger.schema import VERSION as SCHEMA
from sfad.storage.ledger.schema import migrate
from tests.all_messages import REPLIES, REQUESTS
from tests.docs import json_schemas
from tests.docs.pages import ROOT, blocks, text_of
from tests.docs.test_reference import uncommented
from tests.harness import PATIENCE, Daemon, running
from tests.template import run_forked

from .sample import WHEN, message, sample

HERE = Path(__file__).parent
FIRST = "1.0"
"""What is written while the version is lower: candidates for it."""


def directory() -> Path:
    """Return the directory of this version."""
    major, minor, *_ = __version__.split(".")
    return HERE / (f"{major}.{minor}" if int(major) else FIRST)


def frames() -> str:
    """Return a line for each message."""
    found = {"request": REQUESTS, "reply": REPLIES}
    lines = [
        {"is": word, "frame": pack_message(each).hex(), "says": json.loads(to_json(each))}
        for word, kinds in found.items()
        for each in map(message, kinds)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def names() -> Mapping[str, Any]:
    sources = [
        path.read_text()
        for package in ("sfad", "sfactl")
        for path in (ROOT / package).rglob("*.py")
    ]
    found = {name for text in sources for name in re.findall(r"\bSFAD?_[A-Z_]*[A-Z]\b", text)}
    return {
        "protocol": VERSION,
        "ledger": SCHEMA,
        "exit_codes": sorted(MEANINGS),
        "events": sorted(EventType),
        "errors": sorted(ErrorCode),
        "statuses": sorted(Status),
        "rules": sorted(Rule),
        "limits": sorted(LimitKind),
        "actions": sorted(Action),
        "holds": sorted(HOLDS),
        "metrics": {each.shown: sorted(each.labels) for each in METRICS},
        "variables": sorted(found),
    }


def runs() -> list[RunInfo]:
    """Return an ended run, one that was refused, and a live one."""
    info: RunInfo = message_of(RunInfo)
    return [
        replace(info, id=run, root_id=root, parent_id=parent, name=run, status=status, holds=())
        for run, root, parent, status in (
            ("a1", "a1", None, Status.COMPLETED),
            ("a2", "a1", "a1", Status.REJECTED_DEPTH),
            ("a3", "a3", None, Status.RUNNING),
        )
    ]


def message_of(kind: type[Any]) -> Any:
    return msgspec.convert(sample(kind), kind)


def write_ledger(place: Path) -> None:
    """Write a ledger with a row in each table, and what today's code reads there."""
    call = replace(message_of(CallInfo), run_id="a1")
    event = replace(message_of(Event), run_id="a1", root_id="a1", seq=5)
    extra = RunExtra(uid=1000, mode="session", result_head=b"\x00done", request=b"\x80")
    ops = [insert_op("admit", run, extra, None) for run in runs()]
    ops += [call_op(call), event_op(event), charge_op("user", "ann", WHEN, 0.25)]
    ops.append(plan_op("anthropic", "person", 1.5, "{}"))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "ledger.db"
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            migrate(connection)
            for sql, values in statements(ops):
                connection.execute(sql, values)
            connection.execute("VACUUM")
        (place / "ledger.db.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        said = to_json(read_ledger(Path(directory)))
    (place / "ledger.json").write_text(json.dumps(json.loads(said), indent=1) + "\n")


def read_ledger(directory: Path) -> dict[str, Any]:
    """Return what a ledger says."""
    with closing(open_past(directory)) as connection:
        reader = Reader(connection)
        return {
            "runs": reader.runs([1, 2, 3]),
            "calls": reader.calls("a1", (0.0, 0), 9),
            "events": reader.events_of("a1", 0.0),
        }


CONFIG = "[service]\ncontinue_lost = true\n"


def write_spool(place: Path) -> None:
    """Kill a daemon with live runs, and write its spool and their names."""
    with (
        tempfile.TemporaryDirectory(prefix="sfad-") as directory,
        running(Path(directory), config=CONFIG) as daemon,
    ):
        live = _fill(daemon)
        daemon.kill()
        with tarfile.open(place / "spool.tar.gz", "w:gz") as archive:
            archive.add(daemon.state_dir / "spool", "spool", filter=_anonymous)
        daemon.restart()
    (place / "spool.json").write_text(json.dumps(live) + "\n")


def _fill(daemon: Daemon) -> list[str]:
    # a spool has the whole environment of each client
    env = {key: value for key, value in daemon.env.items() if key.startswith("SFAD_")}
    env["PATH"] = "/usr/bin:/bin"

    def spawned(*words: str) -> str:
        told = run_forked("sfactl", ["spawn", *words], env, timeout=2 * PATIENCE, cwd="/")
        assert told.returncode == 0, told
        return told.stdout.strip()

    sleeps = spawned("--name", "sleeps", "--limit", "cost=1", "--label", "team=blue", "--",
                     "sleep", "600")  # fmt: skip
    after = spawned("--after", sleeps, "--", "true")
    again = spawned("--attempts", "3", "--check", "true", "--stdin", "--", "cat")
    paused = spawned("--on-end", "true", "--", "sleep", "600")
    assert daemon.sfactl("pause", paused).returncode == 0
    return [sleeps, after, again, paused]


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def write() -> Path:
    """Write the directory of this version."""
    place = directory()
    place.mkdir(exist_ok=True)
    (place / "frames.jsonl").write_text(frames())
    (place / "names.json").write_text(json.dumps(names(), indent=1) + "\n")
    (place / "schema.json").write_text(json_schemas.text())
    shown = [each.text for each in blocks(text_of("configuration.md")) if each.language == "toml"]
    for name, block in zip(("defaults", "named"), shown, strict=True):
        (place / f"{name}.toml").write_text(uncommented(block))
    write_ledger(place)
    write_spool(place)
    return place
