"""Damage to each file and record of the state directory: the next daemon serves, adopts what it can
know, and names the rest."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime

import msgspec
import pytest

from sfactl.connecting.connection import Client
from sfad.durable.budgets import Charged
from sfad.protocol import messages as m
from sfad.protocol.types import Event, RunInfo, Status
from sfad.storage.store import Store
from tests.conftest import Start
from tests.harness import Daemon, alive, ended, started, stopped, wait_until

from .agents import info

Damage = Callable[[bytes], bytes]

DAMAGES: dict[str, Damage] = {
    "flipped": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0x55]) + data[len(data) // 2 + 1 :]
    ),
    "truncated": lambda data: data[: len(data) // 2],
    "zeroed": lambda data: bytes(len(data)),
    "not UTF-8": lambda data: _not_utf8(data),
    "nested": lambda data: (b"[" if data[:1] in (b"[", b"{") else b"\x91") * 100_000,
    "another type": lambda data: (
        b'{"type":"nonsense"}'
        if data[:1] in (b"[", b"{")
        else msgspec.msgpack.encode({"type": "nonsense"})
    ),
}

CONFIG = """
[quotas]
trees_per_user = {live}
[budgets.users.root]
daily_usd = 5
[[hooks]]
name = "h"
on = ["run_lost"]
command = ["true"]
[gateway]
enabled = true
"""

LIVE = 2 * len(DAMAGES) + 3
FILES = (
    "spool/runs",
    "ledger.db",
    "ledger.db-wal",
    "config.kept",
    "gateway.json",
    "gateway.calls",
    "ballast",
)


def _not_utf8(data: bytes) -> bytes:
    """Return the data with a byte in the middle of its longest word that no text has."""
    words, at = [0, 0], 0
    for place, byte in enumerate(data + b"\0"):
        if not chr(byte).isalnum():
            words = max(words, [place - at, at])
            at = place + 1
    middle = words[1] + words[0] // 2
    return data[:middle] + b"\xff" + data[middle + 1 :]


class Scene:
    """A daemon that was killed, with live runs, a queued one and one that has ended. Its files can
    be put back again and again."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon, self.state = daemon, daemon.state_dir
        with daemon.client() as client:
            self.ended = ended(
                client, started(client, ["sh", "-c", "exit 3"], labels={"a": "b"}).id
            )
            self.live = [
                started(client, ["sleep", "300"], key=f"k{n}", on_end="true") for n in range(LIVE)
            ]
            self.live = [self._running(client, run.id) for run in self.live]
            self.queued = started(client, ["sleep", "300"], labels={"long": "w" * 256})
        wait_until(lambda: (self.state / "gateway.calls").exists(), "the gateway serves")
        daemon.kill()
        with closing(Store(self.state / "spool" / "runs")) as spool:
            spool.write(
                {
                    "charge/user/root": msgspec.msgpack.encode(Charged(datetime.now(UTC), 1.0)),
                    "numbers": b"300",
                }
            )
        call = m.pack_message(
            m.EndCall(id=0, run=self.live[0].id, reservation=f"{self.live[0].id}-1", model="m")
        )
        (self.state / "gateway.calls").write_bytes(call.ljust(4096, b"\0"))
        self._files = {name: (self.state / name).read_bytes() for name in (*FILES, self.spawn)}

    @staticmethod
    def _running(client: Client, run: str) -> RunInfo:
        wait_until(lambda: info(client, run).pid, "it runs")
        return info(client, run)

    @property
    def spawn(self) -> str:
        return f"spool/{self.queued.id}.spawn"

    def put_back(self) -> None:
        for aside in (
            *self.state.rglob("*.corrupt-*"),
            self.state / "ledger.db-shm",
            self.state / "ledger.db.suspect",
        ):
            aside.unlink(missing_ok=True)
        for name, content in self._files.items():
            # each damage to it costs its gateway: it tells of the one that is there now
            if name != "gateway.json":
                (self.state / name).write_bytes(content)

    def damage(self, name: str, damage: Damage) -> None:
        (self.state / name).write_bytes(damage((self.state / name).read_bytes()))

    def damage_records(self, damages: dict[str, Damage]) -> None:
        with closing(Store(self.state / "spool" / "runs")) as spool:
            spool.write({key: damage(spool.items[key]) for key, damage in damages.items()})

    def ledger(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        with closing(sqlite3.connect(self.state / "ledger.db", isolation_level=None)) as ledger:
            for sql, values in statements:
                ledger.execute(sql, values)

    def served(self, *, adopted: list[RunInfo], named: list[str]) -> None:
        """Start a daemon. It must serve every verb that reads, supervise these runs, and name these
        parts in its log and events."""
        before = len(self.daemon.log.read_text())
        self.daemon.restart()
        with self.daemon.client() as client:
            for run in adopted:
                found = info(client, run.id)
                assert (found.status, found.pid) == (Status.RUNNING, run.pid), found
                assert alive(run.pid)
            runs = client.call(m.List(id=client.next_id(), rows=1000), m.RunList).runs
            for run in runs:
                client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply)
                client.call(m.ListCalls(id=client.next_id(), run=run.id), m.CallPage)
            client.call(m.Summarise(id=client.next_id(), since=0.0), m.Summarised)
            client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
            events = list(_events(client))
            assert isinstance(started(client, ["true"]), RunInfo)
        self.daemon.kill()
        log = self.daemon.log.read_text()[before:]
        told = "\n".join(event.message for event in events if event.type == "daemon_state_damaged")
        assert "internal error" not in log, log
        for name in named:
            assert name in log
            assert name in told, told


def _events(client: Client) -> Iterator[Event]:
    after, more = 0, True
    while more:
        page = client.call(m.Events(id=client.next_id(), after=after, rows=500), m.EventPage)
        yield from page.events
        after, more = page.reached, page.more


def _damaged_copies(
    scene: Scene, table: str, key: str, kinds: list[str]
) -> list[tuple[str, tuple[object, ...]]]:
    """Return statements that add a copy of a table's first row for each column and each damage,
    with that damage."""
    with closing(sqlite3.connect(scene.state / "ledger.db")) as ledger:
        ledger.row_factory = sqlite3.Row
        row = dict(ledger.execute(f"SELECT * FROM {table} ORDER BY {key} LIMIT 1").fetchone())  # noqa: S608
    texts = [(name, value) for name, value in row.items() if isinstance(value, str | bytes)]
    found = []
    for number, (kind, name, value) in enumerate((kind, *text) for kind in kinds for text in texts):
        damaged = DAMAGES[kind](value.encode() if isinstance(value, str) else value)
        changed = row | {name: damaged, key: row[key] + 10_000 + number}
        marks = [
            "CAST(? AS TEXT)" if column == name and isinstance(value, str) else "?"
            for column in row
        ]
        found.append((f"INSERT INTO {table} VALUES ({', '.join(marks)})", tuple(changed.values())))  # noqa: S608
    return found


@pytest.mark.rest("keeps a processor busy for seconds")
def test_whatever_is_damaged_the_next_daemon_serves(start: Start) -> None:
    scene = Scene(start(config=CONFIG.format(live=LIVE)))
    _damage_rows(scene)
    _damage_small_records(scene)
    _damage_files(scene)
    _damage_snapshots(scene)
    _damage_spool(scene)
    scene.daemon.restart()
    with scene.daemon.client() as client:
        stopped(client, everything=True, grace=0)


def _damage_rows(scene: Scene) -> None:
    """A text of a row that has ended, of an event, of a call; and of rows of live runs, which are
    written again."""
    scene.put_back()
    with closing(sqlite3.connect(scene.state / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("INSERT INTO calls (run, time, number, state, upstream, model, "
                       "partial, estimated, at_most, streamed, tools, more) "
                       "VALUES (1, 5, 1, 'ended', 'u', 'model', 0, 0, 0, 0, 0, 0)")  # fmt: skip
    for table, key in (("runs", "number"), ("events", "seq"), ("calls", "number")):
        scene.ledger(*_damaged_copies(scene, table, key, list(DAMAGES)))
    for kind, run in zip(DAMAGES, scene.live, strict=False):
        with closing(sqlite3.connect(scene.state / "ledger.db")) as ledger:
            (usage,) = ledger.execute("SELECT usage FROM runs WHERE id = ?", (run.id,)).fetchone()
        damaged = DAMAGES[kind](usage.encode())
        scene.ledger(("UPDATE runs SET usage = CAST(? AS TEXT) WHERE id = ?", (damaged, run.id)))
    sure = [run for kind, run in zip(DAMAGES, scene.live, strict=False) if kind != "flipped"]
    scene.served(
        adopted=scene.live, named=[f"run {run.id}: the row of this live run" for run in sure]
    )


def _damage_small_records(scene: Scene) -> None:
    for kind, damage in DAMAGES.items():
        scene.put_back()
        keys = [
            "hooks",
            "numbers",
            "charge/user/root",
            f"key/{scene.live[0].id}",
            f"onend/{scene.live[1].id}",
        ]
        scene.damage_records(dict.fromkeys([*keys, "events"], damage))
        scene.damage(scene.spawn, damage)
        named = (
            []
            if kind in ("flipped", "not UTF-8")  # what a run is started with is bytes, not text
            else [f"run {scene.queued.id}: its request in the spool cannot be read"]
        )
        named += [
            f"the record {key} in the spool"
            for key in keys
            if kind in ("truncated", "nested") and key != "numbers"
        ]
        scene.served(adopted=scene.live, named=named)


def _damage_files(scene: Scene) -> None:
    for kind, damage in DAMAGES.items():
        for names in (
            ("config.kept", "gateway.json", "gateway.calls", "ballast", "ledger.db"),
            ("ledger.db-wal",),
        ):
            scene.put_back()
            for name in names:
                scene.damage(name, damage)
            sure = (
                kind in ("truncated", "zeroed", "nested", "another type")
                and "gateway.json" in names
            )
            scene.served(adopted=scene.live, named=["gateway.json cannot be read"] if sure else [])


def _damage_snapshots(scene: Scene) -> None:
    """These runs are ended, and no other."""
    scene.put_back()
    parts = [(part, damage) for part in ("run", "now") for damage in DAMAGES.values()]
    lost = scene.live[: len(parts)]
    scene.damage_records(
        {f"{part}/{run.id}": damage for (part, damage), run in zip(parts, lost, strict=True)}
    )
    # it has hardly any text
    maybe = [(part, DAMAGES["flipped"]) for part in ("run", "now")] + [
        ("now", DAMAGES["not UTF-8"])
    ]
    sure = [run for part, run in zip(parts, lost, strict=True) if part not in maybe]
    scene.served(
        adopted=scene.live[len(parts) :],
        named=[f"run {run.id}: its snapshot in the spool cannot be read" for run in sure],
    )


def _damage_spool(scene: Scene) -> None:
    for damage in DAMAGES.values():
        scene.put_back()
        scene.damage("spool/runs", damage)
        scene.served(adopted=[], named=[])


def test_a_page_that_only_the_check_reads(start: Start) -> None:
    """The daemon serves at once. Its check finds the damage, and the daemon renews itself, which
    sets the ledger aside."""
    daemon = start()
    with daemon.client() as client:
        run = started(client, ["sleep", "300"])
        ended(client, started(client, ["true"]).id)
        pid = info(client, run.id).pid
    daemon.stop(9)
    ledger = daemon.state_dir / "ledger.db"
    with closing(sqlite3.connect(ledger)) as other:
        (page,) = other.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'runs_name'"
        ).fetchone()
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(ledger.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    ledger.write_bytes(content)
    daemon.restart()
    wait_until(lambda: list(daemon.state_dir.glob("ledger.db.corrupt-*")), "it was set aside")
    wait_until(
        lambda: daemon.log.read_text().count('"message":"serving"') == 3, "it has renewed itself"
    )
    with daemon.client() as client:
        assert (info(client, run.id).status, info(client, run.id).pid) == (Status.RUNNING, pid)
        told = [event.message for event in _events(client) if event.type == "daemon_state_damaged"]
        stopped(client, run.id)
    assert any("is corrupt" in message for message in told), told
    assert f"the ledger {ledger} is damaged" in daemon.log.read_text()
