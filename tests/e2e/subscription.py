"""Providers that sell by subscription, on loopback: one account, whose windows each call uses up,
and which the person uses too."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from tests.harness import serve_in_thread

ORGANIZATION = "00000000-1111-2222-3333-444444444444"


@dataclass
class Quota:
    """One window: of `length` seconds, of which each call takes `each`."""

    name: str
    length: float
    each: float
    used: float = 0.0
    ends: float = 0.0

    def renew(self, now: float) -> None:
        if now >= self.ends:
            self.used, self.ends = 0.0, now + self.length


@dataclass
class Arrival:
    """A call as it came in."""

    at: float
    login: str
    told: float
    """What the last reply that was sent before had told of the fullest window, less its bound: from
    0 on no agent may call."""
    told_at: float
    status: int = 0
    path: str = ""


@dataclass
class Account:
    url: str = ""
    quotas: list[Quota] = field(default_factory=list)
    bounds: dict[str, float] = field(default_factory=dict)
    """What agents may use of each window."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    arrivals: list[Arrival] = field(default_factory=list)
    bursts: int = 0
    """So many calls are refused next although no window is used up."""
    takes: float = 0.02
    """Seconds until a reply is whole."""
    _told: tuple[float, float, float] = (-1.0, 0.0, 0.0)
    """How far above the bound, when that was told, and when that window ends."""

    def use(self, share: float) -> None:
        """Use so much of each window, as the person does beside sfad."""
        with self.lock:
            now = time.time()
            for quota in self.quotas:
                quota.renew(now)
                quota.used = min(1.0, quota.used + share)

    def call(self, login: str, path: str) -> tuple[int, list[Quota]]:
        """Take a call. Return the status of its answer, and the windows as they are then."""
        with self.lock:
            now = time.time()
            for quota in self.quotas:
                quota.renew(now)
            above, told_at, ends = self._told
            arrival = Arrival(now, login, above if now < ends else -1.0, told_at, path=path)
            self.arrivals.append(arrival)
            arrival.status = 429 if any(quota.used >= 1.0 for quota in self.quotas) else 200
            if self.bursts:
                self.bursts, arrival.status = self.bursts - 1, 429
            if arrival.status == 200:
                for quota in self.quotas:
                    quota.used = round(min(1.0, quota.used + quota.each), 6)
            fullest = max(
                self.quotas, key=lambda quota: quota.used - self.bounds.get(quota.name, 1.0)
            )
            self._told = fullest.used - self.bounds.get(fullest.name, 1.0), now, fullest.ends
            return arrival.status, [Quota(**vars(quota)) for quota in self.quotas]

    @property
    def answered(self) -> int:
        with self.lock:
            return sum(each.status == 200 for each in self.arrivals)


def anthropic_headers(status: int, quotas: list[Quota]) -> dict[str, str]:
    """Return what Anthropic tells of the windows with an answer."""
    fullest = max(quotas, key=lambda quota: quota.used)
    headers = {
        "anthropic-organization-id": ORGANIZATION,
        "anthropic-ratelimit-unified-status": (
            "rejected"
            if status == 429 and fullest.used >= 1.0
            else "allowed_warning"
            if fullest.used >= 0.8
            else "allowed"
        ),
        "anthropic-ratelimit-unified-representative-claim": {"5h": "five_hour", "7d": "seven_day"}[
            fullest.name
        ],
        "anthropic-ratelimit-unified-reset": str(round(fullest.ends, 3)),
    }
    for quota in quotas:
        headers[f"anthropic-ratelimit-unified-{quota.name}-utilization"] = f"{quota.used:.4f}"
        headers[f"anthropic-ratelimit-unified-{quota.name}-reset"] = str(round(quota.ends, 3))
    return headers


def openai_headers(quotas: list[Quota]) -> dict[str, str]:
    """Return what OpenAI tells of the windows with an answer to Codex."""
    headers: dict[str, str] = {}
    for name, quota in zip(("primary", "secondary"), quotas, strict=False):
        headers |= {
            f"x-codex-{name}-used-percent": f"{100 * quota.used:.2f}",
            f"x-codex-{name}-window-minutes": "300" if name == "primary" else "10080",
            f"x-codex-{name}-reset-at": f"{quota.ends:.3f}",
        }
    return headers


def beside_sfad(account: Account, every: float) -> None:
    """Use the subscription as the person does, three times."""
    for _ in range(3):
        account.use(0.1)
        time.sleep(every)


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    request_queue_size = 256
    account: Account

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing when a caller hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 600

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        account, login = self.server.account, self.headers.get("authorization", "")
        status, quotas = account.call(login, self.path)
        time.sleep(account.takes)
        if self.path.endswith("/responses"):
            self._openai(status, quotas)
        else:
            self._anthropic(status, quotas)

    def _anthropic(self, status: int, quotas: list[Quota]) -> None:
        headers = anthropic_headers(status, quotas)
        usage = {"input_tokens": 1000, "output_tokens": 200}
        body: dict[str, Any] = {
            "type": "message",
            "content": [],
            "stop_reason": "end_turn",
            "usage": usage,
            "model": "claude-sonnet-4-5",
        }
        if status == 429:
            body = {
                "type": "error",
                "error": {
                    "type": "rate_limit_error",
                    "message": "This request would exceed your limit",
                },
            }
        self._say(status, headers, body)

    def _openai(self, status: int, quotas: list[Quota]) -> None:
        headers = openai_headers(quotas)
        usage = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}
        body: dict[str, Any] = {
            "id": "r",
            "object": "response",
            "status": "completed",
            "model": "gpt-5",
            "output": [],
            "usage": usage,
        }
        if status == 429 and all(quota.used < 1.0 for quota in quotas):
            body = {"error": {"type": "rate_limit_exceeded", "message": "Slow down"}}
        elif status == 429:
            body = {
                "error": {
                    "type": "usage_limit_reached",
                    "plan_type": "plus",
                    "resets_in_seconds": 1,
                }
            }
        self._say(status, headers, body)

    def _say(self, status: int, headers: dict[str, str], body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"content-type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def selling(*quotas: Quota, **bounds: float) -> Iterator[Account]:
    """Yield an account with these windows, on a port of its own. `bounds`: what agents may use of
    them, as `w5h=0.7`."""
    server = _Server(("127.0.0.1", 0), _Handler)
    named = {name.removeprefix("w"): bound for name, bound in bounds.items()}
    server.account = Account(f"http://127.0.0.1:{server.server_port}", list(quotas), named)
    with serve_in_thread(server):
        yield server.account
