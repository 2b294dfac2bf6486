import os
from collections.abc import Iterator
from datetime import UTC, datetime

from sfad.protocol.paths import SYSTEM_SOCKET
from sfad.protocol.requests.daemon import DaemonInfo, DaemonStatus
from sfad.protocol.texts.units import counted, format_duration
from sfad.protocol.types import Usage

from .. import output
from ..app import app
from ..connecting.connection import call
from ..options.limits import fullest, moment
from ..options.shared import Json, Socket

WORDS = {
    "quotas.trees": "trees of all users",
    "quotas.trees_per_user": "trees",
    "quotas.queued_per_user": "waiting",
    "quotas.spawns_per_hour": "starts within an hour",
    "sessions.max_concurrent_per_user": "sessions",
    "sessions.spawn_rate_limit": "starts of sessions",
}
"""How a quota is called in a sentence, by its key."""


@app.command()
def status(socket: Socket = None, json: Json = False) -> None:
    """Show the daemon: where it is, how it contains runs, and how many there are."""
    found = call(socket, DaemonInfo(id=0), DaemonStatus)
    words = "\n".join(f"{name:<12} {output.plain(value)}" for name, value in facts(found))
    output.answer(json, output.content(found), words)


def _fullest(status: DaemonStatus) -> str | None:
    """Return the window of a subscription of which most is used."""
    if not status.plans:
        return None
    found = fullest(status.plans)
    if found is None:
        return None
    account, window = found
    reset = (
        f"; it resets at {moment(window.resets_at, datetime.now(UTC))}"
        if window.resets_at is not None
        else ""
    )
    held = sum(len(each.held) for each in status.plans)
    waits = f"; {counted(held, 'run')} wait{'s' if held == 1 else ''} for a reset" if held else ""
    used = (
        f"{output.percent(window.used_ratio or 0.0)} of the {window.window} "
        f"window of {account.provider}"
    )
    return f"{used} used{reset}{waits} (sfactl plans)"


def _words(key: str) -> str:
    if key.startswith("groups."):
        return f"trees in the group {key.removeprefix('groups.').removesuffix('.slots')}"
    return WORDS.get(key, key)


def facts(status: DaemonStatus) -> Iterator[tuple[str, str]]:
    yield "daemon", f"sfad {status.version}, pid {status.pid}, up {output.seconds(status.uptime_s)}"
    yield "socket", status.socket
    if status.socket != str(SYSTEM_SOCKET) and os.access(SYSTEM_SOCKET, os.W_OK):
        yield "beside", f"the service of this machine ({SYSTEM_SOCKET}), which has other runs"
    yield "state", status.state_dir
    if status.config_files is not None:
        yield "config", ", ".join(status.config_files) or "no file; built-in values"
    if status.log is not None:
        yield "log", status.log
    yield "containment", f"{status.containment} ({status.containment_detail})"
    live = f"{status.live} live" + (f" (adopted {status.adopted})" if status.adopted else "")
    queued = f"{status.queued} {'of them ' if status.queued else ''}queued"
    if status.admitted is None:  # the caller may not know of all runs
        yield "runs", f"{live}, {queued}"
    else:
        yield "runs", f"{live}, {queued}, {status.admitted} admitted, {status.refused} refused"
        yield "connections", str(status.connections)
    age = output.age(status.backup_at)
    backup = (
        "no backup yet"
        if status.backup_at is None
        else f"backup {output.size(status.backup_bytes)}, {age} old"
    )
    yield (
        "memory",
        f"{output.size(status.memory_bytes)}; ledger {output.size(status.ledger_bytes)}; {backup}",
    )
    if status.ledger_trouble is not None:
        yield "LEDGER", f"CANNOT BE WRITTEN, nothing new is started: {status.ledger_trouble}"
    if status.rejected_config is not None:
        yield (
            "CONFIG",
            (
                f"REJECTED, an earlier one is in force: {status.rejected_config}; "
                "correct it, then: sfactl reload"
            ),
        )
    if status.enforcement:
        who = (f"{kind} by {by}" for kind, by in status.enforcement.items())
        yield "enforcement", ", ".join(who)
    if status.gateway is not None:
        process = (
            f"pid {status.gateway_pid}"
            if status.gateway_pid is not None
            else "it has ended and is being started again"
        )
        yield "gateway", f"{status.gateway}, {process}"
    for gateway in status.gateways:
        yield f"gateway of {output.plain(gateway.user)}", f"{gateway.url}, pid {gateway.pid}"
    if status.metrics is not None:
        trouble = (
            f", NOT SERVED: {status.metrics_trouble}" if status.metrics_trouble is not None else ""
        )
        yield "metrics", f"{status.metrics}{trouble}"
    if status.otel is not None:
        trouble = (
            f", NOT EXPORTED: {status.otel_trouble}" if status.otel_trouble is not None else ""
        )
        yield "spans", f"to {status.otel}{trouble}"
    for hook in status.hooks:
        busy = (
            f", {hook.running} running, {hook.waiting} waiting"
            if hook.running or hook.waiting
            else ""
        )
        dropped = f", {hook.dropped} DROPPED" if hook.dropped else ""
        failing = f", FAILING: {hook.failing}" if hook.failing is not None else ""
        yield (
            "hook",
            (
                f"{hook.name}: on {', '.join(hook.on)}; "
                f"{hook.ended} ended, {hook.failed} failed{dropped}{busy}{failing}"
            ),
        )
    for on_end in status.on_ends:
        yield (
            "on end",
            (
                f"of run {on_end.run_id}, {on_end.state}: {on_end.command}; to cancel it: "
                f"sfactl stop {on_end.run_id}"
            ),
        )
    for alert in status.alerts:
        whose = f"run {alert.run_id}: " if alert.run_id is not None else ""
        yield "ALERT", f"{alert.type} since {output.local(alert.since)}: {whose}{alert.message}"
    if status.cost_usd is not None:
        yield (
            "cost",
            f"{output.usd(status.cost_usd)} USD within the last {format_duration(status.window_s)}",
        )
    if status.linger_command is not None:
        yield "LOGOUT", f"ends this daemon and its runs; to prevent that: {status.linger_command}"
    if status.quotas:
        yield (
            "quotas",
            ", ".join(
                f"{quota.used} of {quota.limit} {_words(quota.key)}" for quota in status.quotas
            ),
        )
    for budget in status.budgets:
        left = max(0.0, budget.usd - budget.used_usd - budget.reserved_usd)
        of_used = output.bound(budget)
        # what is left is at most so much where the use may still grow
        of_rest = output.bound(Usage(partial=budget.at_most, at_most=budget.partial))
        used, limit, rest = map(output.usd, (budget.used_usd, budget.usd, left))
        held = f"{output.usd(budget.reserved_usd)} more reserved, " if budget.reserved_usd else ""
        spent = f"{of_used}{used} of {limit} USD a {budget.period} used, {held}{of_rest}{rest} left"
        if budget.allowance_usd is not None:
            spent = (
                f"{of_used}{used} USD used here, of {output.usd(budget.allowance_usd)} given by "
                f"the fleet's keeper of {limit}"
            )
        elif budget.nodes:
            spent += " in the fleet"
        yield (
            "budget",
            (
                f"{budget.scope} {budget.name}: {spent}; "
                f"renews at {output.local(datetime.fromisoformat(budget.renews))}"
            ),
        )
    if (fullest := _fullest(status)) is not None:
        yield "plan", fullest
    if status.draining:
        yield "draining", "nothing is started any more"
