"""For the author of an agent: tell the daemon what the run uses, and ask before it spends (docs/client.md).

    from sfactl.client import Sfad

    with Sfad() as sfad:
        with sfad.reserve("claude-sonnet-4-5", input_tokens=1200, max_output_tokens=800) as held:
            reply = call_the_model()
            held.settle(input_tokens=reply.input, output_tokens=reply.output)
        sfad.report(turns=1)

Synchronous. One connection, made at the first call, and one lock: any thread may use it, so `trio.to_thread.run_sync` and
`asyncio.to_thread` do. Neither trio nor typer is imported.

A daemon that is restarted, during a call or between two, is waited for and found again: for 10 s, or for `timeout` if that is
less, and only once it had been reached. None is ever started. A request is sent a second time only where the first cannot have
been taken: the connection was known to be closed before, or broke before the last byte of the request. Where the answer alone is
missing, `info` asks again, since it changes nothing; the others raise `Unanswered`, because a report that is sent twice counts
twice.
"""

from __future__ import annotations

import os
import threading
import warnings
from types import TracebackType
from typing import TypeVar

from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, LimitRefusal, Role, RunInfo

from . import connection
from .connection import DaemonError
from .exits import Quit

__all__ = ["DaemonUnreachable", "LimitReached", "NotInARun", "RequestFailed", "Reservation", "Sfad", "SfadError", "Unanswered"]

PATIENCE = 60.0
"""Seconds that an answer may take. The daemon decides in memory and commits to its ledger: milliseconds, if it is well."""

R = TypeVar("R", bound=m.Reply)


class SfadError(Exception):
    """Base of everything that is raised here, but for `ValueError` and `TypeError` of wrong arguments."""


class DaemonUnreachable(SfadError):
    """There is no daemon to speak to, and nothing was sent. `kind` is that of `sfactl.connection.Unreachable`: `missing`,
    `refused`, `denied`, `sandbox`, `silent` or `gone`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class NotInARun(SfadError):
    """There is a daemon, but this process is in none of its runs, and no run was named."""


class Unanswered(SfadError):
    """The request was sent and its answer did not come: it may have been taken or not, and was not sent again."""


class RequestFailed(SfadError):
    """The daemon answered that it cannot be done. `code` says why: `not_permitted`, `no_such_run`, `bad_request`, …"""

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.code = code


class LimitReached(SfadError):
    """A reservation was refused, and nothing was charged. The text is worded for a model; `refusal` has the numbers."""

    def __init__(self, refusal: LimitRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Reservation:
    """What a call to a model may use, held against the run, its ancestors, its user and its teams until it is settled.

    As a context manager it sees that somebody settled: if the block raises, the call may have been made and billed, so what is
    held stays charged in full. `cancel` it in an `except` where you know better.
    """

    def __init__(self, sfad: Sfad, reserved: m.Reserved, name: str) -> None:
        self.id = name
        self.run = reserved.run
        """Id of the run that it is held for."""
        self.cost_usd = reserved.cost_usd
        """The estimate; `None` where the model has no price."""
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
        """Replaces the estimate by what was used. Cached tokens are part of `input_tokens`. Raises `SfadError`."""
        if self.settled:
            raise SfadError(f"reservation {self.id} is settled already")
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
        """Settles with nothing: the call was not made, or is not billed. Raises `SfadError`."""
        return self.settle(input_tokens=0, output_tokens=0)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None and not self.settled:
            words = f"reservation {self.id} was not settled: it stays charged in full. Call settle(), or cancel(), in its block"
            warnings.warn(words, RuntimeWarning, stacklevel=2)


class Sfad:
    """The daemon, as an agent sees it. Nothing is connected before the first call.

    `run` is whose use it is: without it, the run that this process is in. `socket` is the daemon's; without it the places that
    `sfactl` tries. `timeout` is seconds for one answer, `None` waits for ever; for a daemon that is away nobody waits longer than
    10 s.
    """

    def __init__(self, *, run: str | None = None, socket: str | None = None, timeout: float | None = PATIENCE) -> None:
        self._run = run
        self._place = socket
        self._timeout = timeout
        self._lock = threading.Lock()
        self._client: connection.Client | None = None
        self._process = 0

    def __enter__(self) -> Sfad:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. The next call makes another one."""
        with self._lock:
            self._drop()
            self._client = None

    @property
    def run_id(self) -> str | None:
        """The run that the daemon found this process in, whatever `run` says; `None` outside any. Raises `DaemonUnreachable`."""
        with self._lock:
            return self._connected().welcome.run

    def info(self) -> RunInfo:
        """The run as it is now: its limits, with what is used of each. Raises `SfadError`."""
        run = self._run or self.run_id
        if run is None:
            raise NotInARun("this process is in no run of the daemon's: name one, as in Sfad(run='a1')")
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
        """Adds what was used since the last report. Cached tokens are part of `input_tokens`; `model` gives the tokens their
        price where `cost_usd` is not known. Raises `SfadError`, and `ValueError` for a report that tells no amount."""
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
        if _says_nothing(request):
            raise ValueError("a report tells at least one of: turns, messages, input_tokens, output_tokens, cost_usd")
        return self._ask(request, m.RunReply).run

    def reserve(self, model: str, *, input_tokens: int, max_output_tokens: int, role: Role | None = None) -> Reservation:
        """Asks before a call to a model, and holds what it may use at most. Raises `LimitReached`, other `SfadError`."""
        request = m.Reserve(
            id=0, run=self._run, model=model, input_tokens=input_tokens, max_output_tokens=max_output_tokens, role=role
        )
        reserved = self._ask(request, m.Reserved)
        if reserved.refused is not None:
            raise LimitReached(reserved.refused)
        if reserved.reservation is None:
            raise SfadError("the daemon neither held nor refused the reservation")
        return Reservation(self, reserved, reserved.reservation)

    def _ask(self, request: m.Request, expected: type[R]) -> R:
        """One request and its answer. It is sent again if only the answer is missing, and that is allowed."""
        for _ in range(1 + request.repeats):
            try:
                return self._answered(request, expected)
            except connection.Unreachable as error:
                missing = error
        tag = type(request).__struct_config__.tag
        raise Unanswered(f"the {tag} was sent, but not answered, and may have been taken; it is not sent again: {missing.message}")

    def _answered(self, request: m.Request, expected: type[R]) -> R:
        """Raises `Unreachable` if the request was sent, and `SfadError` for everything else."""
        with self._lock:
            try:
                client = self._sent(request)
                return client.answer(request.id, expected)[0]
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
                self._drop()  # interrupted on the way: nobody will take that answer
                raise

    def _sent(self, request: m.Request) -> connection.Client:
        try:
            return self._send(request)
        except connection.Unreachable:
            # A frame that is cut off is no request: nothing of it has been taken.
            self._drop()
        try:
            return self._send(request)
        except connection.Unreachable as error:
            self._drop()
            raise DaemonUnreachable(error.message, error.kind) from None

    def _send(self, request: m.Request) -> connection.Client:
        client = self._connected()
        if isinstance(request, m.Report | m.Reserve) and request.run is None and client.welcome.run is None:
            raise NotInARun("this process is in no run of the daemon's: name one, as in Sfad(run='a1')")
        try:
            client.send(request)
        except TimeoutError:
            raise connection.Unreachable(client.path, "silent", f"it took nothing for {self._timeout:g} s") from None
        return client

    def _connected(self) -> connection.Client:
        # A child of fork() has our socket, and would read our answers.
        if self._client is not None and (self._process != os.getpid() or self._client.closed_by_daemon()):
            self._drop()
        try:
            self._client = self._opened()
        except connection.Unreachable as error:
            self._client = None  # the next call is not to wait as long for a daemon that is gone for good
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
            client = connection.connect(self._place)
            client.be_patient(self._timeout)
            return client
        if self._client.closed:
            patience = connection.RECONNECT if self._timeout is None else min(self._timeout, connection.RECONNECT)
            self._client.reconnect("nothing was sent", patience=patience)
        return self._client

    def _drop(self) -> None:
        """Closes the connection, and remembers that there was one."""
        if self._client is not None:
            self._client.close()


def _says_nothing(report: m.Report) -> bool:
    amounts = (
        *(report.turns, report.messages, report.cost_usd),
        *(report.input_tokens, report.output_tokens, report.cached_tokens, report.cache_write_tokens),
    )
    return all(amount is None for amount in amounts)
