"""A real Prometheus server that scrapes what a test serves."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness import PATIENCE, wait_until


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query. Fails if the server does not accept it."""
        try:
            found = self.get(f"query?{urllib.parse.urlencode({'query': expression})}")
        except urllib.error.HTTPError as error:
            pytest.fail(f"{expression}: {error.read().decode()}")
        assert not found.get("warnings"), found
        return list(found["data"]["result"])

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=PATIENCE) as answer:  # noqa: S310 - the address is the test's own
            found: dict[str, Any] = json.load(answer)
        assert found["status"] == "success", found
        return found


@contextmanager
def scraping(directory: Path, target: str) -> Iterator[Prometheus]:
    """Run a server that scrapes `target` each second."""
    config, port = directory / "prometheus.yml", free_port()
    scrape = {"job_name": "sfad", "static_configs": [{"targets": [target]}]}
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                "scrape_configs": [scrape],
            }
        )
    )
    server = subprocess.Popen(
        [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ],
        stdin=subprocess.DEVNULL, stdout=(log := (directory / "prometheus.log").open("wb")),
        stderr=subprocess.STDOUT, env={"PATH": "/usr/bin:/bin", "GOMAXPROCS": "1"},
    )  # fmt: skip
    prometheus = Prometheus(f"http://127.0.0.1:{port}")

    def scraped() -> bool:
        assert server.poll() is None, (directory / "prometheus.log").read_text()
        with suppress(OSError):  # 503 while it starts
            return any(
                series["value"][1] == "1"
                for series in prometheus.get("query?query=up")["data"]["result"]
            )
        return False

    try:
        wait_until(scraped, "Prometheus has scraped the daemon", seconds=2 * PATIENCE)
        yield prometheus
    finally:
        server.kill()
        server.wait()
        log.close()
