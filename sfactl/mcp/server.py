"""Answers the client of an agent program over stdin and stdout."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from sfad.features.session.messages import SessionRights, SessionRules
from sfad.protocol.requests.starting import AgentList, Agents

from ..connecting.connection import connect
from ..exits import ExitCode, Quit
from . import tools
from .eras import SUBSCRIPTION, EnvelopeEra, HandshakeEra, opened_by
from .json_rpc import ClientRequest, JsonRpc, LineChannel, note
from .session_tools import SessionTools

Json = dict[str, Any]

FAREWELL = 1.0
"""Seconds that last words to the client may delay the end of the server."""
REVOKED_WITHIN = 10.0
"""Seconds that a daemon which is slow, or starts again, has to stop the subagents of cancelled
calls before the server ends."""


def serve(socket: str | None, answer_within: float, ask: bool, *, approvals: bool = False) -> None:
    """Serve until stdin ends, then exit with 0. `answer_within`: seconds that a call may take.
    `ask`: let the client ask the person before a stop. `approvals`: offer the tool that asks for
    these, and no other."""
    # A client may end its server by a signal. There is nothing to clean up.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    restore_environment()
    kind = ApprovalServer if approvals else SessionServer
    kind(LineChannel(*_own_descriptors()), socket, answer_within, ask).run()
    # Not by a return: threads may still wait for the daemon, or hold the lock of stderr.
    os._exit(ExitCode.DONE)


class SessionServer:
    """The server of one client."""

    def __init__(
        self, channel: LineChannel, socket: str | None, answer_within: float, ask: bool
    ) -> None:
        self._channel = channel
        self._socket = socket
        self._answer_within = answer_within
        self._ask = ask
        self._rpc = JsonRpc(channel, self._handle)
        self._era: HandshakeEra | EnvelopeEra | None = None
        self._sessions: SessionTools | None = None
        self._listening: dict[ClientRequest, frozenset[str]] = {}
        """The resources that each request of `subscriptions/listen` names."""
        self._logs = True
        self._at_once: dict[str, Callable[[ClientRequest], Json | None]] = {
            "initialize": self._introduce,
            "logging/setLevel": self._set_level,
            "ping": lambda _request: {},
            "server/discover": self._introduce,
            "subscriptions/listen": self._listen,
        }

    def run(self) -> None:
        """Serve until stdin ends."""
        self._rpc.serve()
        self._channel.linger(
            FAREWELL, lambda: not (self._sessions and self._sessions.revoking), REVOKED_WITHIN
        )

    def _handle(self, request: ClientRequest) -> Json | None:
        """Return the result of a request, or let a thread find it."""
        era = self._era = self._era or opened_by(request)
        era.admit(request)
        at_once = self._at_once.get(request.method)
        if at_once is None:
            work = self._work(request, era)
            self._rpc.work(request, lambda: era.complete(request.method, work()))
            return None
        result = at_once(request)
        return None if result is None else era.complete(request.method, result)

    def _work(self, request: ClientRequest, era: HandshakeEra | EnvelopeEra) -> Callable[[], Json]:
        """Return the function that asks the daemon for the result of a request."""
        if request.method == "tools/list":
            return lambda: _offer(self._socket)
        found = self._session_tools(era)
        by_method = {
            "tools/call": found.call,
            "resources/list": found.resources,
            "resources/read": found.resource,
        }
        return lambda: by_method[request.method](request)

    def _session_tools(self, era: HandshakeEra | EnvelopeEra) -> SessionTools:
        if self._sessions is None:
            # Most servers are asked for nothing but their list of tools.
            from .session_tools import SessionTools

            announce, revoked = self._announce, self._channel.wake
            self._sessions = SessionTools(
                self._socket, self._answer_within, self._ask, era, announce, revoked
            )
        return self._sessions

    def _introduce(self, request: ClientRequest) -> Json:
        assert self._era is not None  # `_handle` has set it
        return self._era.introduction(request.params)

    def _set_level(self, request: ClientRequest) -> Json:
        self._logs = request.params["level"] in ("debug", "info")
        return {}

    def _listen(self, request: ClientRequest) -> None:
        """Acknowledge a subscription. It lasts until the client cancels the request."""
        wanted = request.params["notifications"]
        resources = wanted.get("resourceSubscriptions") or []
        accepted: Json = {
            key: True
            for key in ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
            if wanted.get(key) is True
        }
        if resources:
            accepted["resourceSubscriptions"] = resources
        self._listening[request] = frozenset(resources)

        def forget() -> None:
            self._listening.pop(request)

        request.when_cancelled(forget)
        meta = {SUBSCRIPTION: request.number}
        self._rpc.notify_now(
            "notifications/subscriptions/acknowledged", {"notifications": accepted, "_meta": meta}
        )

    def _announce(self, run: str, words: str) -> None:
        """Tell the client that a session has ended."""
        from .session_tools import URI

        for request, resources in list(self._listening.items()):
            if URI + run in resources:
                meta = {SUBSCRIPTION: request.number}
                self._rpc.notify(
                    "notifications/resources/updated", {"uri": URI + run, "_meta": meta}
                )
        if self._logs and isinstance(self._era, HandshakeEra):
            self._rpc.notify(
                "notifications/message", {"level": "info", "logger": "sfad", "data": words}
            )


class ApprovalServer(SessionServer):
    """The server of one client that asks for approvals."""

    def _work(self, request: ClientRequest, era: HandshakeEra | EnvelopeEra) -> Callable[[], Json]:
        from . import approving

        if request.method == "tools/list":
            return approving.offered
        if request.method == "tools/call":
            return lambda: approving.asked(request, self._socket)
        return super()._work(request, era)


def _own_descriptors() -> tuple[int, int]:
    """Return stdin and stdout as descriptors that no child inherits. A program that this process
    starts, such as the daemon, must not read or write at 0 or 1 what belongs to the client."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


def restore_environment() -> None:
    """Give this process the variables of its parent that it lacks. Codex starts a server with
    hardly more than HOME and PATH, and the server needs to find its daemon, and its subagents their
    keys, as if the program had started them itself."""
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return  # the parent is of another user
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            os.environb.setdefault(name, value)


def _offer(socket: str | None) -> Json:
    """Return the tools, with the registered agents. Start no daemon for that: a program lists the
    tools at its start, whether or not it will use one."""
    main_agent, agents = True, {}
    try:
        with connect(socket) as client:
            main_agent = client.call(SessionRights(id=0), SessionRules).refused is None
            agents = {
                agent.name: agent.description
                for agent in client.call(Agents(id=0), AgentList).agents
            }
    except Quit as error:
        note(error.message)
    return {"tools": list(tools.offered(main_agent=main_agent, agents=agents))}
