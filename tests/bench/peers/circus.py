"""circus over ZeroMQ. It reaps every 5 s unless told otherwise."""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.peers.peer import GRACE, Argv, Load, Peer, Runs
from tests.harness import wait_until


class Circus(Peer):
    name = "circus"
    program = "circusd"
    processes = frozenset({"circusd"})

    @classmethod
    def installed(cls) -> bool:
        return super().installed() and importlib.util.find_spec("zmq") is not None

    def start(self, runs: Runs) -> None:
        del runs
        self.zmq: Any = importlib.import_module("zmq")
        self.place.joinpath("conf").write_text(
            f"[circus]\nendpoint=ipc://{self.place}/s\npubsub_endpoint=ipc://{self.place}/events\nstatsd=False\nwarmup_delay=0\n"
            f"check_delay=0.1\numask=022\nloglevel=WARNING\nlogoutput={self.place}/log\n"
        )
        self.serve("circusd", str(self.place / "conf"))
        self.context = self.zmq.Context()
        self.opened.callback(self.context.destroy, 0)
        self.events = self.context.socket(self.zmq.SUB)
        self.events.setsockopt(self.zmq.SUBSCRIBE, b"watcher.")
        self.events.connect(f"ipc://{self.place}/events")
        self.requests = self.dealer()
        self.asked = 0
        self.ask("numwatchers")
        time.sleep(0.2)  # no event tells when the subscription is in force

    def dealer(self) -> Any:
        dealer = self.context.socket(self.zmq.DEALER)
        dealer.connect(f"ipc://{self.place}/s")
        return dealer

    def ask(self, command: str, **properties: object) -> Any:
        self.asked += 1
        self.requests.send_json(
            {"id": str(self.asked), "command": command, "properties": properties}
        )
        while True:
            if not self.requests.poll(60_000):
                raise TimeoutError(command)
            reply = json.loads(self.requests.recv_multipart()[-1])
            if reply.get("id") == str(self.asked):
                return reply

    def submit(self, argv: Argv) -> str:
        name = f"r{self.asked}"
        options = {
            "respawn": False, "stop_children": True, "graceful_timeout": GRACE, "singleton": True,
            "copy_env": True,
            "stdout_stream": {"class": "FileStream", "filename": str(self.output(name))},
        }  # fmt: skip

        def taken() -> bool:
            # it takes one at a time, and refuses others meanwhile; and refuses one that it has
            # taken
            reply = self.ask(
                "add", name=name, cmd=argv[0], args=argv[1:], options=options, start=True
            )
            return reply["status"] == "ok" or self.ask("status", name=name).get("status") in (
                "active",
                "starting",
            )

        while not taken():
            time.sleep(0.001)
        return name

    def wait(self, run: str) -> None:
        while self.events.poll(60_000):
            if self.events.recv_multipart()[0] == f"watcher.{run}.reap".encode():
                return
        raise TimeoutError(run)

    def wait_all(self, runs: Sequence[str]) -> None:
        # of many events some are lost
        wait_until(
            lambda: list(self.ask("status")["statuses"].values()).count("stopped") >= len(runs),
            "all have stopped",
        )

    def list(self) -> object:
        return self.ask("status")

    def status(self, run: str) -> object:
        return self.ask("status", name=run)

    def stop(self, run: str) -> None:
        self.ask("stop", name=run, waiting=True)

    def output(self, run: str) -> Path:
        return self.place / f"{run}.out"

    def load(self, kind: str, run: str) -> Load:
        request = json.dumps(
            {
                "id": "x",
                "command": "status",
                "properties": {"name": run} if kind == "status" else {},
            }
        ).encode()

        def clients(count: int, seconds: float) -> list[float]:
            sockets = [self.dealer() for _ in range(count)]
            poller, asked, taken = self.zmq.Poller(), {}, []
            end = time.perf_counter() + seconds
            for one in sockets:
                poller.register(one, self.zmq.POLLIN)
                asked[one] = time.perf_counter()
                one.send(request)
            while time.perf_counter() < end:
                for one, _ in poller.poll(200):
                    one.recv_multipart()
                    taken.append(time.perf_counter() - asked[one])
                    asked[one] = time.perf_counter()
                    one.send(request)
            return taken

        return clients

    def commands(self, run: str) -> dict[str, Argv]:
        del run
        return {"list": ["circusctl", "--endpoint", f"ipc://{self.place}/s", "status"]}
