"""The daemon's metrics as clients get them."""

from __future__ import annotations

import getpass
import json
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sfad.config import ConfigError, load
from sfad.features.metrics.table import METRICS
from sfad.protocol import messages as m
from sfad.protocol.types import Claim
from tests.docs.pages import DOCS
from tests.harness import PATIENCE, Daemon, ended, spawn, started, stopped, wait_until
from tests.host.prometheus import free_port, scraping

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
        done = started(client, ["true"], run_type="evil;[x]", name="one").id
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
        assert value(after, "sfad_run_duration_seconds_count", type="evil??x?") == 1
        assert value(after, "sfad_user_live_runs", user=getpass.getuser()) == 1
        assert more(before, after, "sfad_user_runs_ended_total", user=getpass.getuser()) == 1
        assert more(before, after, "sfad_spawn_duration_seconds_count") == 2
        assert value(after, "sfad_ledger_commit_duration_seconds_count") >= 2
        assert value(after, "process_open_fds") > 0


def test_each_metric_is_declared_and_told(common: Daemon) -> None:
    text = common.sfactl("metrics").stdout
    told = {
        line.split()[2]
        for line in text.splitlines()
        if line.startswith("# TYPE") and not line.split()[2].startswith("process_")
    }
    assert told == {each.shown for each in METRICS}
    assert not [
        character for character in text if not character.isprintable() and character != "\n"
    ]


def test_a_run_gets_none(common: Daemon) -> None:
    done = common.sfactl("run", "--timeout", "60s", "--", sys.executable, "-m", "sfactl", "metrics")
    assert done.returncode != 0
    assert "metrics" in done.stdout + done.stderr
    assert "sfad_runs" not in done.stdout


# ---- over HTTP


def listening(daemon: Daemon) -> str:
    """Have the daemon serve metrics at a port that was free a moment ago. Return the address."""

    def served() -> str | None:
        address = f"127.0.0.1:{free_port()}"
        configure(daemon, address)
        wait_until(
            lambda: answers(address) or trouble(daemon), "it serves, or says why it does not"
        )
        return address if trouble(daemon) is None else None

    return str(wait_until(served, "an address could be bound"))


def answers(address: str | Path) -> bool:
    with suppress(OSError):
        return b"sfad_build_info" in asked(address, GET)
    return False


def trouble(daemon: Daemon) -> object:
    return json.loads(daemon.sfactl("status", "--json").stdout)["metrics_trouble"]


def configure(daemon: Daemon, listen: str) -> None:
    lines = [
        line
        for line in daemon.config.read_text().splitlines()
        if not line.startswith(("[metrics]", "listen"))
    ]
    daemon.config.write_text("\n".join([*lines, "[metrics]", f'listen = "{listen}"']) + "\n")
    done = daemon.sfactl("reload")
    assert done.returncode == 0, done.stderr


def asked(address: str | Path, request: bytes) -> bytes:
    """Send bytes and return all that comes until the connection is closed."""
    where = (
        str(address)
        if isinstance(address, Path)
        else ("127.0.0.1", int(address.rpartition(":")[2]))
    )
    with socket.socket(
        socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    ) as connection:
        connection.connect(where)
        connection.settimeout(PATIENCE)
        connection.sendall(request)
        reply = b""
        while piece := connection.recv(65536):
            reply += piece
    return reply


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.needs("promtool", "prometheus")
def test_promtool_accepts_the_metrics_and_prometheus_the_dashboard(
    common: Daemon, tmp_path: Path
) -> None:
    with common.client() as client:
        ended(client, started(client, ["true"], run_type="demo").id)
    address = listening(common)
    text = asked(address, GET).partition(b"\r\n\r\n")[2]
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    names = {name for name, _ in samples(text.decode())}
    with scraping(tmp_path, address) as prometheus:
        (series,) = wait_until(
            lambda: prometheus.query('sfad_run_duration_seconds_count{type="demo"}'),
            "its figures are there",
        )
        assert float(series["value"][1]) >= 1
        queries = list(expressions())
        assert len(queries) > 20
        for expression in queries:
            prometheus.query(expression)
            known = {
                *names,
                *(
                    f"{each.shown}{part}"
                    for each in METRICS
                    for part in ("", "_sum", "_count", "_bucket")
                ),
            }
            assert set(re.findall(r"\b(?:sfad|process)_\w+", expression)) <= known, expression


def expressions() -> Iterator[str]:
    """Yield each query of the dashboard, with values for its variables."""
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")


def test_a_unix_socket_is_its_owner_s_only(common: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "m"
    configure(common, f"unix:{path}")
    wait_until(path.exists, "it is bound")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert asked(path, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    common.reexecute()
    wait_until(lambda: answers(path), "the next program serves")
    configure(common, "off")
    wait_until(lambda: not path.exists(), "it is removed")


ODD = [
    (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", b"405"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"403"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    (b"HEAD /metrics HTTP/1.1\r\nHost: [::1]:9\r\n\r\n", b"200"),
]


def test_odd_requests(common: Daemon) -> None:
    address = listening(common)
    assert [asked(address, request).split()[1] for request, _ in ODD] == [
        status for _, status in ODD
    ]


def test_an_address_in_use_is_told(common: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        configure(common, address)
        status = wait_until(
            lambda: "NOT SERVED" in (text := common.sfactl("status").stdout) and text,
            "the trouble is shown",
        )
        assert f"{address}, NOT SERVED: [Errno 98] Address already in use" in status
    configure(common, "off")


@pytest.mark.parametrize(
    "listen",
    [
        "0.0.0.0:9464",
        "example.org:9464",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "unix:m",
        "9464",
        "[::]:9464",
    ],
)
def test_an_address_that_others_could_reach_is_refused(tmp_path: Path, listen: str) -> None:
    file = tmp_path / "sfad.toml"
    file.write_text(f'[metrics]\nlisten = "{listen}"\n')
    with pytest.raises(ConfigError, match=r'allowed is "127\.0\.0\.1:PORT"'):
        load([file])
