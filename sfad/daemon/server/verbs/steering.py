"""Verbs that change live runs: `stop`, `pause`, `resume`, `limit`, `approve`, `deny`, `signal`,
`send`; and `select`."""

import signal as os_signal
from collections.abc import Mapping
from signal import valid_signals

from ....core import events as e
from ....core.state.access import OUTSIDE, VERBS, Scope
from ....core.state.policy import Invalid
from ....core.state.run import check_grace
from ....protocol.errors import (
    RequestError,
    bad_request,
    check_limits,
    check_most,
    unavailable,
    wrong_state,
)
from ....protocol.messages import (
    Approve,
    ChangeLimits,
    Deny,
    Done,
    Failure,
    Pause,
    Resume,
    Select,
    Selected,
    Send,
    Signal,
    Stop,
)
from ....protocol.types import ErrorCode, RunId, RunInfo, Status
from ....runs.live import Live
from ..asker import Asker, answers, answers_about_run
from ..checks import CHANGES, MAX_CHOSEN, check_filters, check_signal

# ---- `select`: which runs a command line means. The peer needs the permission for what is to be
# done to them.


@answers(Select, checked_later=True)
def select(asker: Asker, request: Select) -> None:
    if request.verb not in VERBS | OUTSIDE:
        raise bad_request(f"unknown verb '{request.verb[:80]}'")
    asker.check_permitted(request.verb)
    check_choice(request)
    named, failed = [], []
    for handle in dict.fromkeys(request.runs):
        try:
            named.append(asker.find(handle, request.verb))
        except RequestError as error:
            failed.append(Failure(run=handle, code=error.code, message=str(error)))
    runs = dict.fromkeys([*named, *filtered(asker, request, request.verb)])
    asker.reply(Selected(id=asker.id, runs=list(runs), failed=failed))


def check_choice(request: Stop | Select) -> None:
    check_most("runs in one request", len(request.runs), MAX_CHOSEN)
    check_filters(request)


def own_scope(asker: Asker) -> Scope:
    """Return the runs that the peer means where it names none: a member of the admin group must not
    end the work of all users by `stop --all`. The operator and root mean all."""
    return asker.scope if asker.peer.owner else Scope(asker.peer.uid, asker.peer.run)


def has_filters(request: Stop | Select) -> bool:
    return request.everything or request.name is not None or bool(request.labels)


def filtered(asker: Asker, request: Stop | Select, verb: str) -> list[RunId]:
    """Return the live runs that the request's filters choose and `verb` makes sense for, parents
    first. For a peer inside a run, these are the runs below its own."""
    if not has_filters(request):
        return []
    own = asker.peer.run
    scope = own_scope(asker) if verb in CHANGES else asker.scope
    found = asker.runtime.catalogue.live_runs(scope, name=request.name, labels=request.labels)
    if own is not None:
        found.pop(own, None)
    if verb == "pause":
        found = {run: live for run, live in found.items() if live.run.status is Status.RUNNING}
        return [run for run, live in found.items() if not _is_below_any(live, found)]
    return [run for run, live in found.items() if verb != "resume" or live.run.paused is not None]


def _is_below_any(live: Live, found: Mapping[RunId, Live]) -> bool:
    return any(above in found for above in live.lineage_ids[:-1])


# ---- `stop`: stop runs and everything below them


@answers(Stop)
def stop(asker: Asker, request: Stop) -> None:
    if request.sessions:
        _check_sessions(asker, request)
    check_signal(request.signal, valid_signals())
    try:  # the core checks it too, but features would have been told of the stop by then
        check_grace(request.grace)
    except Invalid as invalid:
        raise bad_request(str(invalid)) from invalid
    check_choice(request)
    if not (request.runs or has_filters(request)):
        raise bad_request("say what to stop: runs, a name, labels, or everything")
    named = [asker.find(handle) for handle in request.runs]
    for run in named:
        for tell in asker.runtime.parts.stopped:
            tell(run)
    runs = tuple(dict.fromkeys([*named, *filtered(asker, request, "stop")]))
    asker.ask(e.StopRequested, runs, request.signal, request.grace)


def _check_sessions(asker: Asker, request: Stop) -> None:
    refused = asker.runtime.machine.why_sessions_refused(asker.peer)
    if refused is not None:
        raise RequestError(ErrorCode.NOT_PERMITTED, refused)
    if not request.runs or has_filters(request):
        raise bad_request("to stop sessions, name each in `runs`")
    for handle in request.runs:
        run = asker.resolve(handle)
        if not run.session:
            raise bad_request(
                f"run {run.id} ('{run.name}') is not a session; stop it with: sfactl stop {run.id}"
            )


# ---- `pause`: freeze a run's whole tree and stop its clocks


@answers_about_run(Pause)
def pause(asker: Asker, request: Pause, run: RunInfo) -> None:
    asker.ask(e.PauseRequested, run.id, request.suspended)


# ---- `resume`: thaw a paused run


@answers_about_run(Resume)
def resume(asker: Asker, request: Resume, run: RunInfo) -> None:
    asker.ask(e.ResumeRequested, run.id, check_limits(request.limits), request.suspended)


# ---- `approve`: grant the increase that a run waits for


@answers_about_run(Approve)
def approve(asker: Asker, request: Approve, run: RunInfo) -> None:
    asker.ask(e.ApproveRequested, run.id, check_limits(request.limits))


# ---- `deny`: refuse the increase that a run waits for


@answers_about_run(Deny)
def deny(asker: Asker, _request: Deny, run: RunInfo) -> None:
    asker.ask(e.DenyRequested, run.id)


# ---- `limit`: change the limits of a live run


@answers_about_run(ChangeLimits)
def limit(asker: Asker, request: ChangeLimits, run: RunInfo) -> None:
    if not request.limits:
        raise bad_request("say which limits: KIND=VALUE")
    asker.ask(e.LimitRequested, run.id, check_limits(request.limits))


# ---- `signal`: send a signal to a run's main process, for the client of a run in the foreground


MAIN_SIGNALS = frozenset({
    os_signal.SIGINT, os_signal.SIGQUIT, os_signal.SIGWINCH, os_signal.SIGTSTP, os_signal.SIGCONT,
    os_signal.SIGUSR1, os_signal.SIGUSR2, os_signal.SIGHUP,
})  # fmt: skip
"""What may be sent. SIGTERM and SIGKILL have `stop`, which tells what became of the processes;
SIGSTOP has `pause`."""


@answers_about_run(Signal)
def signal(asker: Asker, request: Signal, run: RunInfo) -> None:
    check_signal(request.signal, MAIN_SIGNALS)
    if request.signal == os_signal.SIGCONT and run.status is Status.PAUSED:
        raise wrong_state(f"run {run.id} is paused; 'sfactl resume {run.id}' thaws it")
    if not asker.runtime.resources.launcher.signal_main(run.id, request.signal):
        raise wrong_state(f"run {run.id} is {run.status}; it has no main process to signal")
    asker.reply(Done(id=asker.id))


# ---- `send`: write to the stdin of a run that was started with a pipe for it


@answers_about_run(Send)
def send(asker: Asker, request: Send, run: RunInfo) -> None:
    live = asker.runtime.catalogue.live.get(run.id)
    if live is None:
        raise wrong_state(f"run {run.id} is {run.status}; it reads no input any more")
    if live.stdin is None and live.output.stdin == "pipe":
        raise wrong_state(
            f"run {run.id} reads no input any more: its stdin ended with the daemon that held it"
        )
    if live.stdin is None and run.session:
        where = f"{agent!r}" if (agent := live.run.asked.identity.agent) else "it"
        raise wrong_state(
            f"run {run.id} reads no input: "
            f"in the config, the entry of its agent {where} needs stdin = true"
        )
    if live.stdin is None:
        raise wrong_state(
            f"run {run.id} was not started with --stdin, so nothing can be sent to it"
        )
    if live.stdin.over is not None:
        raise wrong_state(f"nothing can be sent to run {run.id}: {live.stdin.over}")
    refused = live.stdin.write(request.data, eof=request.eof)
    if refused is not None:
        code = wrong_state if live.stdin.over is not None else unavailable
        raise code(f"could not send {len(request.data)} bytes to run {run.id}: {refused}")
    asker.reply(Done(id=asker.id))
