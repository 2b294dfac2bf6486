"""Carries out the calls of tools, in threads of the server: waiting, progress, questions to the
person, ends of sessions.

A session belongs to the daemon, so neither the end of a thread nor of this process ends one.
"""

from __future__ import annotations

import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

from msgspec.structs import replace

from sfad.features.session.messages import StartSession
from sfad.protocol.types import ErrorCode

from .. import output
from ..connecting.connection import ABSENT, AGAIN, RECONNECT, DaemonError, Unreachable
from ..exits import Quit
from ..sessions import asking as sessions
from ..sessions.asking import SessionView
from . import json_rpc, tools
from .eras import EnvelopeEra, HandshakeEra, can_ask
from .json_rpc import INTERNAL_ERROR, INVALID_PARAMS, Cancelled, ClientRequest, RpcError, note

# ---- What a model is told: results of tools, and sessions in words


Json = dict[str, Any]

_LISTED = (
    "run_id",
    "name",
    "status",
    "elapsed_s",
    "turns",
    "tokens",
    "cost_usd",
    "partial",
    "at_most",
    "reason",
)


def text(words: str, *, failed: bool = False) -> Json:
    """Return the result of a tool that says this."""
    return {"content": [{"type": "text", "text": words}], "isError": failed}


def with_news(result: Json, news: Sequence[str]) -> Json:
    """Return a result that also says these sentences, where each client looks: Claude Code shows
    the model only the object of one that has it, and Codex lets newer models write scripts, which
    take the first text."""
    if not news:
        return result
    if "structuredContent" in result:
        return _structured(result["structuredContent"] | {"news": news})
    return text("\n".join((result["content"][0]["text"], *news)), failed=result["isError"])


def accepted(view: SessionView) -> Json:
    """Return the answer to a start in the background."""
    if view.ended:
        return told(view)  # it could not be started
    known = _known(view, ("run_id", "name", "lowered"))
    return _structured({"status": "accepted"} | known | {"advice": _waiting(view)})


def listed(views: Sequence[SessionView]) -> Json:
    return _structured({"sessions": [_known(view, _LISTED) for view in views]})


def told(view: SessionView) -> Json:
    """Return the state of a session, with its answer: only as text, because in an object it would
    be quoted."""
    return text(whole(view), failed=view.ended and view.status != "completed")


def whole(view: SessionView) -> str:
    """Return what is known of a session, with its answer."""
    advice = view.advice if view.ended else _waiting(view)
    return "\n".join(filter(None, (line(view), view.reason, *view.lowered, advice, view.result)))


def line(view: SessionView) -> str:
    """Return a session in one line: `a5 (reviewer): running, 42s, 3 turns, 0.31 USD`."""
    cost = f"{output.bound(view)}{output.usd(view.cost_usd)} USD"
    shown = (
        view.status,
        None if view.elapsed_s is None else output.seconds(view.elapsed_s),
        None if view.turns is None else f"{view.turns} turns",
        None if view.cost_usd is None else cost,
    )
    return f"{view.run_id} ({view.name}): {', '.join(filter(None, shown))}"


def in_words_of_tools(error: Quit) -> str:
    """Return the message of an error without the commands that a person would use."""
    if isinstance(error, DaemonError) and error.error in (
        ErrorCode.NO_SUCH_RUN,
        ErrorCode.AMBIGUOUS_RUN,
    ):
        return f"{error.message.partition('; ')[0]}; sessions_list shows the ids"
    return error.message


def _known(view: SessionView, fields: Sequence[str]) -> Json:
    """Return those fields of a session that say something: each word of an answer costs the model
    tokens."""
    return {
        field: value for field in fields if (value := getattr(view, field)) not in (None, False, [])
    }


def _structured(value: Json) -> Json:
    """Return an object. Clients show the model either the object or the text, so both say the
    same."""
    return text(json_rpc.readable(value)) | {"structuredContent": value}


def _waiting(view: SessionView) -> str:
    return (
        f"sessions_info with run_id '{view.run_id}' and wait_seconds waits for its end, "
        "so do not poll with sleep"
    )


# ---- The tools


PROGRESS = 4.0
"""Seconds between reports of progress. opencode gives up after 5 s without one (1.18)."""
URI = "sfad://sessions/"
CHANNEL = "mcp"


class Delegation:
    """The subagent whose answer a call of `delegate_to_subagent` waits for."""

    def __init__(self) -> None:
        self.run: str | None = None
        """`None` until it has started, or if it could not start."""
        self.started = Event()
        """Set once it has started, or could not start."""


class SessionTools:
    """The tools and the resources of one client. Each public function is for any thread, and may
    wait."""

    def __init__(
        self,
        socket: str | None,
        answer_within: float,
        ask: bool,
        era: HandshakeEra | EnvelopeEra,
        announce: Callable[[str, str], None],
        revoked: Callable[[], None],
    ) -> None:
        """`answer_within`: seconds that a call may take. `ask`: let the client ask the person
        before a stop. `announce` is called with the run and a sentence when a session has ended
        whose end the model does not know, and `revoked` when a cancelled one has been stopped."""
        self._socket = socket
        self._answer_within = answer_within
        self._ask = ask
        self._era = era
        self._announce = announce
        self._revoked = revoked
        self._delegating: set[Delegation] = set()
        self._news: dict[str, str] = {}
        """Sentences about sessions that have ended, by run, until the model is told with the answer
        to its next call."""
        self._told: set[str] = set()
        """Runs of whose end the model knows from an answer."""
        self._lock = allocate_lock()
        """Held to compare and change `_news` and `_told`."""
        self._revoking: set[Delegation] = set()
        self._carry_out: dict[str, Callable[..., Json]] = {
            "delegate_to_subagent": self._delegate,
            "sessions_spawn": self._spawn,
            "sessions_list": self._list,
            "sessions_stop": self._stop,
            "sessions_log": self._log,
            "sessions_info": self._info,
            "sessions_send": self._send,
        }

    @property
    def revoking(self) -> bool:
        """Whether a subagent whose call was cancelled has not been stopped yet."""
        return bool(self._revoking)

    def call(self, request: ClientRequest) -> Json:
        """Return the result of a call. What goes wrong is a result, too, because a model reads only
        those."""
        name = request.params["name"]
        try:
            values = tools.read(name, request.params.get("arguments"))
            result = self._carry_out[name](request, **values)
        except Quit as error:
            result = text(in_words_of_tools(error), failed=True)
        except (UnicodeEncodeError, RecursionError) as error:
            result = text(f"{name}: {_wrong(error)}", failed=True)
        if "content" in result and not request.cancelled:
            news = [self._news.pop(run, None) for run in list(self._news)]
            result = with_news(result, [words for words in news if words])
        return result

    def resources(self, _request: ClientRequest) -> Json:
        """List sessions. A client that listens to one is told when it has ended."""
        views = _for_resources(lambda: sessions.list_sessions(socket=self._socket))
        return {
            "resources": [
                {"uri": URI + view.run_id, "name": f"{view.run_id} {view.name}"} for view in views
            ]
        }

    def resource(self, request: ClientRequest) -> Json:
        """Return a session in words."""
        uri = request.params["uri"]
        view = _for_resources(lambda: sessions.info(uri.removeprefix(URI), socket=self._socket))
        return {"contents": [{"uri": uri, "text": whole(view)}]}

    # ---- the tools

    def _delegate(
        self,
        request: ClientRequest,
        *,
        task: str,
        tools_needed: list[str],
        agent: str | None,
        worker_name: str | None,
        worker_instructions: str | None,
        limits: Json | None,
        check: list[str],
    ) -> Json:
        order = sessions.order(
            task,
            check=check,
            agent=agent,
            name=worker_name,
            instructions=worker_instructions,
            limits=limits or (),
            allowed_tools=tools_needed,
            channel=CHANNEL,
        )
        begun = time.monotonic()
        rules = sessions.rules(self._socket)
        if request.cancelled:
            raise Cancelled
        delegation = Delegation()
        self._delegating.add(delegation)
        request.when_cancelled(lambda: self._revoke(delegation))
        try:
            started = self._started(order, delegation)
            request.progress(0, line(started))
            left = min(self._answer_within, rules.sync_timeout_s) - (time.monotonic() - begun)
            view = self._waited(request, started.run_id, left)
        except Quit as error:
            if delegation.run is None:
                raise
            how = f"its run is {delegation.run}, which may go on: ask with sessions_info later"
            return text(f"no answer of the subagent: {error.message}; {how}", failed=True)
        finally:
            self._delegating.discard(delegation)
        return told(replace(view, lowered=started.lowered))

    def _spawn(
        self,
        _request: ClientRequest,
        *,
        timeout_minutes: float | None,
        worker_name: str | None,
        limits: Json | None,
        **more: Any,
    ) -> Json:
        timeout = None if timeout_minutes is None else timeout_minutes * 60
        order = sessions.order(
            timeout=timeout, name=worker_name, limits=limits or (), channel=CHANNEL, **more
        )
        return accepted(self._started(order))

    def _list(self, _request: ClientRequest) -> Json:
        return listed(sessions.list_sessions(socket=self._socket))

    def _log(self, _request: ClientRequest, *, run_id: str, tail: int) -> Json:
        return text(sessions.log(run_id, socket=self._socket, tail=tail).text)

    def _info(self, request: ClientRequest, *, run_id: str, wait_seconds: float) -> Json:
        return told(self._waited(request, run_id, min(wait_seconds, self._answer_within)))

    def _send(self, _request: ClientRequest, *, run_id: str, message: str) -> Json:
        view = sessions.send(run_id, message, socket=self._socket, channel=CHANNEL)
        if view is None:
            return text(f"written to the stdin of {run_id}")
        if not view.ended:
            _in_background(self._watch, view.run_id)
        return accepted(view)

    def _stop(self, request: ClientRequest, *, run_id: str, confirm: bool) -> Json:
        view = sessions.info(run_id, socket=self._socket)
        run = view.run_id
        if view.ended:
            return text(f"there was nothing to stop: {sessions.headline(view)}")
        answer = self._persons_answer(request, view)
        if isinstance(answer, dict):
            return answer
        if answer is None and not confirm:
            return text(
                (
                    f"no person can be asked here whether to stop {run}: "
                    "to stop it, give confirm = true"
                ),
                failed=True,
            )
        if answer not in (None, "accept"):
            did = "declined to stop" if answer == "decline" else "did not answer whether to stop"
            how = "ask the person whether to stop it; they can do so themselves"
            return text(
                f"the person {did} {run}, so it goes on; {how}: sfactl stop {run}", failed=True
            )
        self._told.add(run)
        done = sessions.stop(run, socket=self._socket)
        if done.survivors:
            return text(output.survivors(done.survivors), failed=True)
        return text(f"stopped: {', '.join(done.stopped) or f'{run} had already ended'}")

    def _persons_answer(self, request: ClientRequest, view: SessionView) -> str | Json | None:
        """Return what the person says to a stop (`accept`, `decline` or another word), `None` if
        the client cannot ask, or the result that makes the client ask and call again."""
        if not (self._ask and can_ask(self._era.capabilities(request))):
            return None
        question = {
            "mode": "form",
            "message": f"Stop this subagent and everything below it? {line(view)}",
            "requestedSchema": {"type": "object", "properties": {}},
        }
        if self._era.asks:
            return _action(request.ask_client("elicitation/create", question))
        if not request.params.get("inputResponses"):
            asked = {"stop": {"method": "elicitation/create", "params": question}}
            return {"resultType": "input_required", "inputRequests": asked}
        return _action(request.params["inputResponses"].get("stop"))

    # ---- starting, waiting, and the ends of sessions

    def _started(self, order: StartSession, delegation: Delegation | None = None) -> SessionView:
        """Start a session, and watch for its end."""
        delegation = delegation or Delegation()
        try:
            view = sessions.spawn(order, socket=self._socket)
            delegation.run = view.run_id
        finally:
            delegation.started.set()
        if not view.ended:
            _in_background(self._watch, view.run_id)
        return view

    def _waited(self, request: ClientRequest, run: str, seconds: float) -> SessionView:
        """Wait for the end of a session, and report its progress meanwhile."""
        end = time.monotonic() + max(0.0, seconds)
        while True:
            left = end - time.monotonic()
            view = self._seen(run, max(0.0, min(PROGRESS, left)))
            if view.ended and not request.cancelled:
                with self._lock:
                    self._told.add(view.run_id)
                    self._news.pop(view.run_id, None)
            if view.ended or left <= PROGRESS or request.cancelled:
                return view
            request.progress(seconds - left + PROGRESS, line(view))

    def _seen(self, run: str, wait: float) -> SessionView:
        """Return the session when it has ended, or after `wait` seconds. The daemon may be
        restarted meanwhile."""
        give_up = time.monotonic() + wait + RECONNECT
        while True:
            try:
                return sessions.info(run, socket=self._socket, wait=wait)
            except Unreachable as error:
                if error.kind not in ABSENT or time.monotonic() >= give_up:
                    raise
            time.sleep(AGAIN)

    def _watch(self, run: str) -> None:
        """Announce the end of a session, and tell the model with the answer to its next call."""
        try:
            while not (view := self._seen(run, 3600.0)).ended:
                pass
        except Quit as error:
            note(f"the end of run {run} will not be announced: {error.message}")
            return
        words = f"Session {line(view)}. sessions_info with run_id '{run}' has its answer."
        # In this order: a delegation notes its run among those told before it is removed.
        if run in [delegation.run for delegation in list(self._delegating)]:
            return
        with self._lock:
            if run in self._told:
                return
            self._news[run] = words
        self._announce(run, words)

    def _revoke(self, delegation: Delegation) -> None:
        """Stop the subagent of a cancelled delegate: nobody waits for its answer, and it costs
        money. What it has written stays."""
        self._revoking.add(delegation)
        _in_background(self._stop_revoked, delegation)

    def _stop_revoked(self, delegation: Delegation) -> None:
        delegation.started.wait()
        if (run := delegation.run) is not None:
            self._told.add(run)
            self._news[run] = (
                f"Session {run} was stopped because your call was cancelled. "
                "sessions_log shows what it had done."
            )
            try:
                sessions.stop(run, socket=self._socket)
            except Quit as error:
                self._news[run] = (
                    f"Session {run}, whose call was cancelled, "
                    f"could not be stopped: {error.message}"
                )
        self._revoking.discard(delegation)
        self._revoked()


def _in_background(work: Callable[..., None], *arguments: object) -> None:
    try:
        start_new_thread(work, arguments)
    except RuntimeError as error:
        note(f"{error}, so the end of a session may not be announced, or a cancelled one may go on")


def _action(answer: object) -> str:
    """Return what a person did with a question, as a client tells it: `accept`, `decline` or
    another word."""
    action = answer.get("action") if isinstance(answer, dict) else None
    return action if isinstance(action, str) else "cancel"


def _for_resources(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Quit as error:
        raise RpcError(INTERNAL_ERROR, error.message) from None
    except UnicodeEncodeError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {_wrong(error)}") from None


def _wrong(error: UnicodeEncodeError | RecursionError) -> str:
    """Return what is wrong with parameters that cannot be sent to the daemon."""
    if isinstance(error, UnicodeEncodeError):
        return f"a text has half a character: {error.object[error.start : error.end]!a}"
    return "a parameter is nested too deeply"
