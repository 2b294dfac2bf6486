"""What the next daemon makes of snapshots that it cannot read."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from sfad.agents.command import Command
from sfad.core.state.request import Asked, Identity, Shown
from sfad.core.state.run import Attempt, Birth, State
from sfad.durable.snapshots import Origin, Progress, encode
from sfad.durable.spool import Spool
from sfad.host.clock import Timers
from sfad.host.tasks import LoopRounds
from sfad.protocol.types import Bound, Status
from sfad.runs.live import Output, Parts
from sfad.storage.store import Store

ANY = Bound(value=3, source="--flag")


def origin(run: str, number: int) -> bytes:
    """Return what is saved once of a run."""
    asked = Asked(Shown(("x",), cwd="/tmp"), Identity(name="a"))
    birth = Birth(run, number, "a", "agent", asked, 1000, "ann", "cli", None, 1.0, ANY, ANY)
    made = datetime.now(UTC)
    return encode(
        Origin(birth, Command([], b"", []), Output(), Parts(), None, "nonce", made, None, None)
    )


def as_before_groups(saved: bytes) -> bytes:
    """Return it in the form in which a request had all fields side by side."""
    parts: list[Any] = msgspec.msgpack.decode(saved)
    groups = parts[0]["asked"]
    parts[0]["asked"] = {name: value for group in groups.values() for name, value in group.items()}
    return msgspec.msgpack.encode(parts)


def test_a_run_that_another_version_has_saved_in_another_form_is_told_as_unreadable(
    tmp_path: Path,
) -> None:
    now = encode(Progress(State(Status.RUNNING, {}, 60.0, Attempt(1)), None, None, None))
    with closing(Spool(tmp_path, Timers(print), LoopRounds(), print)) as spool:
        spool.begin("/state")
    with closing(Store(tmp_path / "runs")) as store:
        store.write(
            {
                "run/a1": origin("a1", 1),
                "now/a1": now,
                "run/a2": as_before_groups(origin("a2", 2)),
                "now/a2": now,
            }
        )
    with closing(Spool(tmp_path, Timers(print), LoopRounds(), print)) as spool:
        found, broken = spool.earlier.snapshots()
        assert (list(found), list(broken)) == (["a1"], ["a2"])
        assert found["a1"].origin.birth.asked.shown.cwd == "/tmp"
        assert "shown" in str(broken["a2"])
