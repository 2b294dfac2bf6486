"""supervisord 4, over XML-RPC. It runs the programs of its configuration."""

from __future__ import annotations

import http.client
import shlex
import socket
import xmlrpc.client
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench.peers.peer import GRACE, Argv, Load, Peer, Requests, Runs
from tests.harness import wait_until


class Supervisord(Peer):
    name = program = "supervisord"
    processes = frozenset({"supervisord"})

    def start(self, runs: Runs) -> None:
        self.socket = self.place / "s"
        self.log = self.place / "log"
        # its children close each descriptor up to minfds
        sleepers = sum(count for argv, count in runs if "sleep" in argv[0])
        parts = [
            f"[unix_http_server]\nfile={self.socket}",
            f"[supervisord]\nnodaemon=true\nlogfile={self.log}\nlogfile_maxbytes=0\npidfile={self.place}/pid\n"
            f"minfds={1024 if sleepers < 150 else 8192}",
            "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
            f"[supervisorctl]\nserverurl=unix://{self.socket}",
        ]
        self.groups: dict[tuple[str, ...], Iterator[str]] = {}
        for group, (argv, count) in enumerate(runs):
            self.groups[tuple(argv)] = iter([f"g{group}:{number:05d}" for number in range(count)])
            if count:
                parts.append(
                    f"[program:g{group}]\ncommand={shlex.join(argv)}\nnumprocs={count}\nprocess_name=%(process_num)05d\n"
                    f"autostart=false\nautorestart=false\nstartsecs=0\nstartretries=0\nstopwaitsecs={GRACE:.0f}\nstopasgroup=true\n"
                    f"killasgroup=true\nredirect_stderr=true\nstdout_logfile={self.place}/g{group}:%(process_num)05d\nstdout_logfile_maxbytes=0"
                )
        (self.place / "conf").write_text("\n".join(parts))
        self.serve("supervisord", "-c", str(self.place / "conf"))
        connection = self.opened.enter_context(socket.socket(socket.AF_UNIX))
        wait_until(lambda: not connection.connect_ex(str(self.socket)), "supervisord serves")
        self.rpc: Any = xmlrpc.client.ServerProxy("http://localhost", _Over(connection)).supervisor
        self.rpc.getState()

    def submit(self, argv: Argv) -> str:
        run = next(self.groups[tuple(argv)])
        self.rpc.startProcess(run, False)
        return run

    def submit_all(self, argv: Argv, count: int) -> list[str]:
        runs = [next(self.groups[tuple(argv)]) for _ in range(count)]
        if runs:
            # all that were not started
            self.rpc.startProcessGroup(runs[0].partition(":")[0], False)
        return runs

    def wait(self, run: str) -> None:
        while self.rpc.getProcessInfo(run)["statename"] not in ("EXITED", "FATAL", "STOPPED"):
            pass

    def wait_all(self, runs: Sequence[str]) -> None:
        # its log tells each exit: no load on its only thread
        wait_until(lambda: self.log.read_text().count(" exited: ") >= len(runs), "all exited")

    def list(self) -> object:
        return self.rpc.getAllProcessInfo()

    def status(self, run: str) -> object:
        return self.rpc.getProcessInfo(run)

    def stop(self, run: str) -> None:
        self.rpc.stopProcess(run, True)

    def output(self, run: str) -> Path:
        return self.place / run

    def load(self, kind: str, run: str) -> Load:
        method, words = (
            ("getProcessInfo", (run,)) if kind == "status" else ("getAllProcessInfo", ())
        )
        body = xmlrpc.client.dumps(words, f"supervisor.{method}")
        head = (
            "POST /RPC2 HTTP/1.1\r\nHost: "
            f"localhost\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return Requests(self.socket, "http", b"", f"{head}{body}".encode())

    def commands(self, run: str) -> dict[str, Argv]:
        del run
        return {"list": ["supervisorctl", "-c", str(self.place / "conf"), "status"]}


class _Over(xmlrpc.client.Transport):
    """XML-RPC over one connection, which stays open."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._kept = http.client.HTTPConnection("localhost")
        self._kept.sock = connection

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        del host
        return self._kept
