"""What each release has written is read by today's code, and says the same."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sfad.config import load
from sfad.durable.snapshots import RetryingStore
from sfad.durable.spool import EarlierSpool, SavedContinuedWith, SavedSpawns
from sfad.protocol.encoding import to_json
from sfad.protocol.framing import HEADER, reader
from sfad.protocol.requests.base import Reply, Request
from sfad.storage.ledger import OpenedLedger
from sfad.storage.store import Store
from tests import all_messages
from tests.docs import json_schemas

from .sample import message
from .written import HERE, directory, names, read_ledger

RELEASES = sorted(each for each in HERE.iterdir() if (each / "frames.jsonl").exists())
BASES: dict[str, type[msgspec.Struct]] = {"request": Request, "reply": Reply}
READ = {word: reader(base) for word, base in BASES.items()}
each_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def lost(then: Any, now: Any, where: str = "") -> list[str]:
    """Return what stood in JSON then and is not there now, or is another value."""
    if isinstance(then, dict) and isinstance(now, dict):
        gone = [f"{where}/{key}" for key in then if key not in now]
        kept = (key for key in then if key in now)
        return [each for key in kept for each in lost(then[key], now[key], f"{where}/{key}")] + gone
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [
            each
            for at, (one, other) in enumerate(zip(then, now, strict=True))
            for each in lost(one, other, f"{where}/{at}")
        ]
    return [] if then == now else [f"{where}: {then!r} became {now!r}"]


def shrunk(then: Any, now: Any, where: str = "") -> list[str]:
    """Return what a schema promised and another one does not: a field, that it is always there, its
    type. Words may be added, and so may alternatives."""
    found = []
    for key, value in then.items():
        place = f"{where}/{key}"
        if key in ("description", "title", "$id"):
            continue
        if key not in now:
            found.append(place)
        elif key in ("properties", "$defs", "verbs"):
            for name, each in value.items():
                if name not in now[key]:
                    found.append(f"{place}/{name}")
                else:
                    found += shrunk(each, now[key][name], f"{place}/{name}")
        elif key in ("required", "enum", "anyOf"):
            found += [f"{place}: {each}" for each in value if each not in now[key]]
        elif isinstance(value, dict) and isinstance(now[key], dict):
            found += shrunk(value, now[key], place)
        elif value != now[key]:
            found.append(place)
    return found


def test_this_version_has_its_bytes() -> None:
    assert directory() in RELEASES, "run: python -m tests.frozen"


@each_release
def test_each_frame_says_the_same(release: Path) -> None:
    for line in (release / "frames.jsonl").read_text().splitlines():
        then = json.loads(line)
        body, base = bytes.fromhex(then["frame"])[HEADER:], BASES[then["is"]]
        now = json.loads(to_json(READ[then["is"]](body)))
        assert lost(then["says"], now) == [], (base, then["says"]["type"])


@each_release
def test_the_ledger_says_the_same(release: Path, tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    file.write_bytes(gzip.decompress((release / "ledger.db.gz").read_bytes()))
    then = json.loads((release / "ledger.json").read_text())
    assert lost(then, json.loads(to_json(read_ledger(tmp_path)))) == []
    assert file.read_bytes() == gzip.decompress((release / "ledger.db.gz").read_bytes())
    opened = OpenedLedger(tmp_path)
    opened.close()
    assert opened.notes == []


@each_release
def test_the_spool_of_live_runs_is_read(release: Path, tmp_path: Path) -> None:
    """That of the version itself, and of the one before it."""
    if release not in RELEASES[-2:]:
        pytest.skip("no release reads the spool of one so old")
    with tarfile.open(release / "spool.tar.gz") as archive:
        # Python 3.11.4 and later
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **options)  # noqa: S202 - of this checkout
    troubles: list[str] = []
    files = [file for file in (tmp_path / "spool").rglob("*") if file.is_file()]
    assert not any(b"HOME=" in file.read_bytes() for file in files), (
        "it has variables of the person who wrote it"
    )
    store = Store(tmp_path / "spool" / "runs", lambda: None)
    assert store.take_notes() == []
    earlier = EarlierSpool(store, RetryingStore.__new__(RetryingStore))
    found, broken = earlier.snapshots()
    live = json.loads((release / "spool.json").read_text())
    store.close()
    assert (earlier.sound, broken, sorted(found)) == (True, {}, live)
    continued = SavedContinuedWith(tmp_path / "spool" / "continued_with", troubles.append)
    assert all(continued.read(run) is not None for run in continued.runs())
    spawns = SavedSpawns(tmp_path / "spool", troubles.append, troubles.append)
    assert spawns.read(live[1]) is not None
    assert troubles == []


@each_release
@pytest.mark.parametrize("name", ["defaults", "named"])
def test_a_config_with_each_key_is_accepted(release: Path, name: str) -> None:
    file = release / f"{name}.toml"
    assert any(setting.source == str(file) for setting in load([file]).settings)


@each_release
def test_each_word_is_still_there(release: Path) -> None:
    then, now = json.loads((release / "names.json").read_text()), json.loads(to_json(names()))
    for subject, words in then.items():
        if isinstance(words, list):
            assert [word for word in words if word not in now[subject]] == [], subject
        elif isinstance(words, dict):
            gone = [word for word, labels in words.items()
                    if not set(labels) <= set(now[subject].get(word, ()))]  # fmt: skip
            assert gone == [], subject
        else:
            assert words <= now[subject], subject


@each_release
def test_the_json_of_verbs_has_only_grown(release: Path) -> None:
    assert shrunk(json.loads((release / "schema.json").read_text()), json_schemas.schema()) == []


def test_what_is_lost_is_noticed() -> None:
    assert lost({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2, "c": 3}], "d": 4}) == []
    assert lost({"a": [1, {"b": 2}], "d": 4}, {"a": [1, {"b": 3}]}) == [
        "/a/1/b: 2 became 3", "/d"
    ]  # fmt: skip
    then = {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}
    assert shrunk(then, {"properties": {"a": {"type": "integer"}}, "required": []}) == [
        "/properties/a/type", "/properties/b", "/required: a"
    ]  # fmt: skip


def test_a_message_has_all_its_fields() -> None:
    for kind in (*all_messages.REQUESTS, *all_messages.REPLIES):
        assert message(kind) is not None
