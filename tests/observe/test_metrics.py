"""The daemon's metrics as clients get them."""

from __future__ import annotations

import sys

from prometheus_client.parser import text_string_to_metric_families

from sfad.observe.metrics import METRICS
from sfad.protocol import messages as m
from sfad.protocol.types import Claim
from tests.harness import Daemon, ended, spawn, started, stopped

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Return each sample's value, by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def measured(daemon: Daemon) -> Samples:
    return samples(daemon.sfactl("metrics").stdout)


def value(found: Samples, name: str, **labels: str) -> float:
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


def more(before: Samples, after: Samples, name: str, **labels: str) -> float:
    return value(after, name, **labels) - value(before, name, **labels)


def test_what_happened_is_counted_and_a_reexecution_keeps_it(common: Daemon) -> None:
    before = measured(common)
    with common.client() as client:
        done = started(client, ["true"], run_type="evil\x1b]0;x\x07\n", name="one").id
        ended(client, done)
        live = started(client, ["sleep", "1000"]).id
        refused = spawn(client, ["true"], name="again", claim=Claim(names=["again"], depth=1))
        assert isinstance(refused, m.Refused)
        found = measured(common)
        common.reexecute()
        kept = measured(common)
        stopped(client, live, grace=0)
    for after in (found, kept):
        assert value(after, "sfad_runs", status="running") == 1
        assert more(before, after, "sfad_runs_ended_total", status="completed") == 1
        assert more(before, after, "sfad_spawns_refused_total", rule="loop") == 1
        assert value(after, "sfad_run_duration_seconds_count", type="evil??0?x??") == 1
        assert more(before, after, "sfad_spawn_duration_seconds_count") == 2
        assert value(after, "sfad_ledger_commit_duration_seconds_count") >= 2
        assert value(after, "process_open_fds") > 0


def test_each_metric_is_declared_and_told(common: Daemon) -> None:
    text = common.sfactl("metrics").stdout
    told = {
        line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and not line.split()[2].startswith("process_")
    }
    assert told == {each.shown for each in METRICS}
    assert not [character for character in text if not character.isprintable() and character != "\n"]


def test_a_run_gets_none(common: Daemon) -> None:
    done = common.sfactl("run", "--timeout", "60s", "--", sys.executable, "-m", "sfactl", "metrics")
    assert done.returncode != 0
    assert "metrics" in done.stdout + done.stderr
    assert "sfad_runs" not in done.stdout
