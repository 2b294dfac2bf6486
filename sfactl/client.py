"""For authors of agents: report what a run uses to the daemon, and reserve before a call to a model
(docs/client.md).

    from sfactl.client import Sfad

    with Sfad() as sfad:
        reservation = sfad.reserve("claude-sonnet-4-5", input_tokens=1200, max_output_tokens=800)
        with reservation:
            reply = call_the_model()
            reservation.settle(input_tokens=reply.input, output_tokens=reply.output)
        sfad.report(turns=1)

Synchronous. One connection, made at the first call, and one lock: any thread may use it, so
`trio.to_thread.run_sync` and `asyncio.to_thread` do. Neither trio nor typer is imported.

If the daemon restarts during a call or between two, the client waits for it and connects again: for
10 s, or for `timeout` if that is less, and only if it had been connected before. The client never
starts a daemon. It sends a request a second time only if the daemon cannot have taken the first:
the connection was known to be closed before, or broke before the last byte of the request. If only
the reply is missing, `info` asks again, because it changes nothing; the others raise `Unanswered`,
because a report that is sent twice counts twice.
"""

from __future__ import annotations

import os
import threading
import warnings
from typing import TypeVar

from sfad.protocol import messages as m
from sfad.protocol.types import Role, RunInfo

from .connecting import connection
from .connecting.connection import DaemonError
from .errors import (
    DaemonUnreachable,
    LimitReached,
    NotInARun,
    RequestFailed,
    SfadError,
    Unanswered,
)
from .exits import Quit

__all__ = [
    "DaemonUnreachable",
    "LimitReached",
    "NotInARun",
    "RequestFailed",
    "Reservation",
    "Sfad",
    "SfadError",
    "Unanswered",
]

CALL_SECONDS = 60.0
"""Seconds to wait for a reply. The daemon usually needs milliseconds: it decides in memory and
commits to its ledger."""
NO_RUN = "this process is not in a run of the daemon; name one, as in Sfad(run='a1')"
R = TypeVar("R", bound=m.Reply)


class Reservation:
    """What a call to a model may use. It counts against the run, its ancestors, its user and its
    teams until it is settled.

    As a context manager it warns if the block ends without `settle` or `cancel`. If the block
    raises, the call may have been made and billed, so the reserved amount stays charged in full.
    Call `cancel` in an `except` if you know that it was not."""

    def __init__(self, sfad: Sfad, reserved: m.Reserved, name: str) -> None:
        self.id = name
        self.run = reserved.run
        """Id of the run that it counts against."""
        self.cost_usd = reserved.cost_usd
        """The estimate; `None` if the model has no known price."""
        self.settled = False
        self._sfad = sfad

    def settle(
        self,
        *,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
        turns: int | None = None,
        messages: int | None = None,
        cost_usd: float | None = None,
    ) -> RunInfo:
        """Replace the estimate with what was used. Cached tokens are part of `input_tokens`. Raise
        `SfadError`."""
        if self.settled:
            raise SfadError(f"reservation {self.id} is already settled")
        request = m.Settle(
            id=0,
            reservation=self.id,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            cache_write_tokens=cache_write_tokens,
            turns=turns,
            messages=messages,
            cost_usd=cost_usd,
        )
        run = self._sfad._ask(request, m.RunReply).run
        self.settled = True
        return run

    def cancel(self) -> RunInfo:
        """Settle with 0, because the call was not made or is not billed. Raise `SfadError`."""
        return self.settle(input_tokens=0, output_tokens=0)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None and not self.settled:
            words = (
                f"reservation {self.id} was not settled, so it stays charged in full; "
                "call settle() or cancel() in its block"
            )
            warnings.warn(words, RuntimeWarning, stacklevel=2)


class Sfad:
    """The daemon, for an agent. The connection is made at the first call.

    `run` is the run to report for (default: the run that this process is in). `socket` is the
    daemon's socket (default: the places that `sfactl` tries). `timeout` is in seconds, for one
    reply; `None` waits without end. A daemon that went away is waited for at most 10 s."""

    def __init__(
        self,
        *,
        run: str | None = None,
        socket: str | None = None,
        timeout: float | None = CALL_SECONDS,
    ) -> None:
        self._run = run
        self._place = socket
        self._timeout = timeout
        self._lock = threading.Lock()
        self._client: connection.Client | None = None
        self._process = 0

    def __enter__(self) -> Sfad:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        with self._lock:
            self._drop()
            self._client = None

    @property
    def run_id(self) -> str | None:
        """The run in which the daemon found this process, independent of `run`; `None` outside any
        run. Raise `DaemonUnreachable`."""
        with self._lock:
            return self._connected().welcome.run

    def info(self) -> RunInfo:
        """Return the current state of the run: its limits, and what is used of each. Raise
        `SfadError`."""
        run = self._run or self.run_id
        if run is None:
            raise NotInARun(NO_RUN)
        return self._ask(m.Info(id=0, run=run), m.RunReply).run

    def report(
        self,
        *,
        turns: int | None = None,
        messages: int | None = None,
        model: str | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        cache_write_tokens: int | None = None,
        cost_usd: float | None = None,
        role: Role | None = None,
    ) -> RunInfo:
        """Add what was used since the last report. Cached tokens are part of `input_tokens`. If
        `cost_usd` is not given, the price of `model` counts. Raise `SfadError`, and `ValueError`
        for a report without an amount."""
        request = m.Report(
            id=0,
            run=self._run,
            model=model,
            turns=turns,
            messages=messages,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            cache_write_tokens=cache_write_tokens,
            cost_usd=cost_usd,
            role=role,
        )
        if request == m.Report(id=0, run=self._run, model=model, role=role):
            raise ValueError(
                "a report needs at least one of: "
                "turns, messages, input_tokens, output_tokens, cost_usd"
            )
        return self._ask(request, m.RunReply).run

    def reserve(
        self, model: str, *, input_tokens: int, max_output_tokens: int, role: Role | None = None
    ) -> Reservation:
        """Reserve the most that a call to a model may use, before the call. Raise `LimitReached`
        and other `SfadError`."""
        request = m.Reserve(
            id=0,
            run=self._run,
            model=model,
            input_tokens=input_tokens,
            max_output_tokens=max_output_tokens,
            role=role,
        )
        reserved = self._ask(request, m.Reserved)
        if reserved.refused is not None:
            raise LimitReached(reserved.refused)
        if reserved.reservation is None:
            raise SfadError("the daemon neither granted nor refused the reservation")
        return Reservation(self, reserved, reserved.reservation)

    def _ask(self, request: m.Request, expected: type[R]) -> R:
        """Send a request and return its reply. Send it again if only the reply is missing and the
        request allows it."""
        for _ in range(1 + request.repeats):
            try:
                return self._answered(request, expected)
            except connection.Unreachable as error:
                missing = error
        tag = type(request).__struct_config__.tag
        raise Unanswered(
            f"the {tag} was sent but not answered, so it may have been taken; "
            f"it is not sent again: {missing.message}"
        )

    def _answered(self, request: m.Request, expected: type[R]) -> R:
        """Raise `Unreachable` if the request was sent, and `SfadError` for everything else."""
        with self._lock:
            try:
                client = self._sent(request)
                return client.answer(client.last_id, expected)[0]
            except DaemonError as error:
                raise RequestFailed(error.message, error.error) from None
            except connection.Unreachable:
                self._drop()
                raise
            except Quit as error:
                raise SfadError(error.message) from None
            except SfadError:
                raise
            except BaseException:
                self._drop()  # interrupted: the reply may still come, and no call would take it
                raise

    def _sent(self, request: m.Request) -> connection.Client:
        try:
            return self._send(request)
        except connection.Unreachable:
            # A frame that is cut off is no request, so the daemon has not taken it.
            self._drop()
        try:
            return self._send(request)
        except connection.Unreachable as error:
            self._drop()
            raise DaemonUnreachable(error.message, error.kind) from None

    def _send(self, request: m.Request) -> connection.Client:
        client = self._connected()
        if (
            isinstance(request, m.Report | m.Reserve)
            and request.run is None
            and client.welcome.run is None
        ):
            raise NotInARun(NO_RUN)
        try:
            client.send(request)
        except TimeoutError:
            raise connection.Unreachable(
                client.path, "silent", f"it read nothing for {self._timeout:g} s"
            ) from None
        return client

    def _connected(self) -> connection.Client:
        # A child of fork() has our socket, and would read our replies.
        if self._client is not None and (
            self._process != os.getpid() or self._client.closed_by_daemon()
        ):
            self._drop()
        try:
            self._client = self._opened()
        except connection.Unreachable as error:
            # the next call must not wait again for a daemon that did not come back
            self._client = None
            raise DaemonUnreachable(error.message, error.kind) from None
        except DaemonError as error:
            self._client = None
            raise RequestFailed(error.message, error.error) from None
        except Quit as error:
            raise DaemonUnreachable(error.message, "missing") from None
        self._process = os.getpid()
        return self._client

    def _opened(self) -> connection.Client:
        if self._client is None:
            client = connection.connect(self._place, patient=False)
            client.be_patient(self._timeout)
            return client
        if self._client.closed:
            patience = (
                connection.RECONNECT
                if self._timeout is None
                else min(self._timeout, connection.RECONNECT)
            )
            self._client.reconnect("nothing was sent", patience=patience)
        return self._client

    def _drop(self) -> None:
        """Close the connection, but remember that there was one."""
        if self._client is not None:
            self._client.close()
