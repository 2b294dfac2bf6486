"""Verbs about the daemon itself: `status`, `plans`, `config`, `reload`, `agents`, `prune`."""

import os
import signal

import psutil
import trio

from .... import __version__
from ....config import ConfigError
from ....core.state.access import EVERYTHING
from ....core.state.quotas import QuotaUse
from ....host import systemd
from ....host.installed import other_version
from ....protocol.errors import bad_request
from ....protocol.messages import (
    AgentList,
    Agents,
    Config,
    ConfigReply,
    DaemonInfo,
    DaemonStatus,
    ListSubscriptions,
    Prune,
    Reload,
    Reloaded,
    SubscriptionList,
)
from ....protocol.types import QuotaState, Status
from ..asker import Asker, answers
from ..checks import MAX_SECONDS
from .steering import own_scope

# ---- `status`: the daemon itself


@answers(DaemonInfo)
def status(asker: Asker, _request: DaemonInfo) -> None:
    runtime, machine = asker.runtime, asker.runtime.machine
    resources, launcher = runtime.resources, runtime.resources.launcher
    backup = resources.ledger.file.backup
    scope = asker.scope
    mine = runtime.catalogue.live_runs(scope).values()
    everything = scope == EVERYTHING
    trusted = asker.peer.uid in (0, os.geteuid())
    asker.reply(
        DaemonStatus(
            id=asker.id,
            version=__version__,
            pid=os.getpid(),
            uptime_s=round(trio.current_time() - runtime.began, 3),
            socket=resources.socket,
            state_dir=str(resources.state_dir),
            containment=launcher.containment,
            containment_detail=launcher.detail,
            draining=machine.draining,
            live=len(mine),
            queued=sum(live.run.status is Status.QUEUED for live in mine),
            admitted=machine.admitted if everything else None,
            refused=machine.refused if everything else None,
            connections=len(asker.services.connections) if everything else None,
            memory_bytes=psutil.Process().memory_info().rss,
            ledger_bytes=resources.ledger.records.size_bytes,
            ledger_trouble=runtime.storage.unwritable,
            backup_bytes=backup.size_bytes if backup is not None else None,
            backup_at=backup.at if backup is not None else None,
            adopted=runtime.succession.adopted,
            enforcement={kind: launcher.enforced_by(kind) for kind in ("memory", "pids", "cpu")},
            linger_command=systemd.linger_command(),
            rejected_config=runtime.in_force.rejected if trusted else None,
            config_files=[str(path) for path in runtime.in_force.files] if trusted else None,
            log=resources.log.place if trusted else None,
            quotas=_quotas(asker) if scope.run is None else [],
            **runtime.parts.status(asker.peer, scope),
        )
    )


# ---- `plans`: a field of `status`, by itself


@answers(ListSubscriptions)
def plans(asker: Asker, _request: ListSubscriptions) -> None:
    found = asker.runtime.parts.status(asker.peer, asker.scope).get("plans", [])
    asker.reply(SubscriptionList(id=asker.id, accounts=found))


# ---- parts of `status`


def _quotas(asker: Asker) -> list[QuotaState]:
    found, slots = (
        asker.runtime.machine.quotas(asker.peer.user, trio.current_time()),
        asker.runtime.machine.slots,
    )
    everyones = (
        [QuotaUse("quotas.trees", slots.count, slots.total)] if asker.scope == EVERYTHING else []
    )
    return [
        QuotaState(
            key=one.key,
            used=one.used,
            limit=one.limit,
            possible_in_s=None if one.wait is None else round(one.wait, 3),
        )
        for one in (*everyones, *found)
    ]


# ---- `config`: the effective configuration, and where each value comes from


@answers(Config)
def config(asker: Asker, _request: Config) -> None:
    asker.reply(ConfigReply(id=asker.id, settings=asker.runtime.in_force.settings))


# ---- `reload`: read the config again


@answers(Reload)
def reload(asker: Asker, _request: Reload) -> None:
    answer = Reloaded(id=asker.id, files=[], changed=[], becomes=other_version())
    try:
        loaded, answer.changed = asker.runtime.reload()
        answer.files = [str(path) for path in loaded.files]
    except ConfigError as error:
        # another version may know the key; it checks the config before it takes over
        if answer.becomes is None:
            raise bad_request(f"nothing was changed: {error}") from None
    asker.reply(answer)
    if answer.becomes is not None:
        os.kill(os.getpid(), signal.SIGUSR2)


# ---- `agents`: the registered agents


@answers(Agents)
def agents(asker: Asker, _request: Agents) -> None:
    asker.reply(
        AgentList(
            id=asker.id, agents=[entry.info for entry in asker.runtime.in_force.agents.values()]
        )
    )


# ---- `prune`: remove rows and output of trees that have ended


@answers(Prune)
def prune(asker: Asker, request: Prune) -> None:
    if request.keep < 0 or not 0 <= (request.older_than or 0) <= MAX_SECONDS:
        raise bad_request(f"keep must be 0 or more, and older_than 0 to {MAX_SECONDS:.0f} seconds")
    runtime, uid, failing = asker.runtime, own_scope(asker).uid, "not everything was removed: "
    groups = asker.connection.groups.all
    asker.later(
        lambda: runtime.upkeep.maintenance.prune(request, uid, runtime.forget_pruned, groups),
        lambda found: found,
        failing=failing,
    )
