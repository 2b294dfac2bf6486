"""pm2 over its own sockets. It tells of an end to those who subscribe, and cannot be asked about
one run."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tests.bench.peers.peer import GRACE, Argv, Peer, Runs


class Pm2(Peer):
    name = program = "pm2"
    without = frozenset({"W7"})  # its socket has a framing of its own

    def start(self, runs: Runs) -> None:
        del runs
        self.env |= {"PM2_HOME": str(self.place), "PM2_DISCRETE_MODE": "1"}
        (self.place / "touch").write_text("1")  # or it greets
        self.call("pm2", "ping")
        self.env = {
            key: self.env[key]
            for key in ("PATH", "HOME", "PM2_HOME", "BENCH_PLACE")
            if key in self.env
        }
        self.pid = int((self.place / "pm2.pid").read_text())
        self.requests, self.replies = self.connect("rpc.sock")
        _, self.pushes = self.connect("pub.sock")
        self.ended: set[int] = set()
        self.asked = 0

    def connect(self, name: str) -> tuple[socket.socket, BinaryIO]:
        connection = self.opened.enter_context(socket.socket(socket.AF_UNIX))
        connection.connect(str(self.place / name))
        connection.settimeout(60)
        return connection, self.opened.enter_context(connection.makefile("rb"))

    def pids(self) -> list[int]:
        return [self.pid]

    def request(self, method: str, *words: object) -> bytes:
        self.asked += 1
        body = b"j:" + json.dumps({"type": "call", "method": method, "args": words}).encode()
        return b"\x12" + b"".join(
            len(part).to_bytes(4, "big") + part for part in (body, b"s:h:%d" % self.asked)
        )

    def ask(self, *requests: bytes) -> list[Any]:
        found = []
        for at in range(0, len(requests), 8):
            self.requests.sendall(b"".join(requests[at : at + 8]))
            found += [
                json.loads(_parts(self.replies)[0][2:])["args"][0] for _ in requests[at : at + 8]
            ]
        return found

    def app(self, argv: Argv) -> dict[str, object]:
        name = f"r{self.asked}"
        paths = {
            f"pm_{kind}_path": str(self.place / f"{name}.{kind}")
            for kind in ("out_log", "err_log", "pid")
        }
        return paths | {
            "name": name, "namespace": "default", "pm_exec_path": argv[0], "args": argv[1:],
            "pm_cwd": str(self.place), "env": self.env, "exec_interpreter": "none",
            "exec_mode": "fork_mode", "autorestart": False, "autostart": True, "vizion": False,
            "pmx": False, "automation": False, "treekill": True, "watch": False, "merge_logs": True,
            "username": "root", "kill_timeout": int(1000 * GRACE), "kill_retry_time": 100,
            "instance_var": "NODE_APP_INSTANCE",
        }  # fmt: skip

    def submit(self, argv: Argv) -> Any:
        return self.submit_all(argv, 1)[0]

    def submit_all(self, argv: Argv, count: int) -> list[Any]:
        return [
            one["pm2_env"]
            for (one,) in self.ask(*(self.request("prepare", self.app(argv)) for _ in range(count)))
        ]

    def wait(self, run: Any) -> None:
        self.wait_all([run])

    def wait_all(self, runs: Sequence[Any]) -> None:
        while not self.ended.issuperset(run["pm_id"] for run in runs):
            topic, body = _parts(self.pushes)
            if (
                topic.endswith(b"process:event")
                and (event := json.loads(body[2:]))["event"] == "exit"
            ):
                self.ended.add(event["process"]["pm_id"])

    def list(self) -> object:
        return self.ask(self.request("getMonitorData", {}))

    def status(self, run: Any) -> object:
        del run
        return self.list()

    def stop(self, run: Any) -> None:
        self.ask(self.request("stopProcessId", run["pm_id"]))

    def output(self, run: Any) -> Path:
        return Path(run["pm_out_log_path"])

    def commands(self, run: Any) -> dict[str, Argv]:
        del run
        return {"list": ["pm2", "ls"]}


def _parts(stream: BinaryIO) -> list[bytes]:
    """Read a message of the AMP protocol."""
    count = stream.read(1)[0] & 15
    return [stream.read(int.from_bytes(stream.read(4), "big")) for _ in range(count)]
