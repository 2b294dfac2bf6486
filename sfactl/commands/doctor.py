import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import Struct
from msgspec.json import decode

from sfad.host import probe
from sfad.protocol.paths import state_dir
from sfad.protocol.requests.daemon import Config, ConfigReply, DaemonInfo, DaemonStatus, Setting

from .. import output
from ..app import app
from ..connecting.connection import ABSENT, Unreachable, connect, start_of
from ..exits import ExitCode, Quit
from ..options.shared import Json, Socket, flag

LOW_DISK = 1 << 30
"""Bytes: sixteen runs that fill their 64 MiB of output."""
LOW_INODES = 1024
"""New files: a run needs three for its output."""
LOW_FILES = 1024
"""Descriptors: the daemon needs a few for each run, so a few hundred runs exhaust fewer."""
LOW_PROCESSES = 2048
"""The pids limit of two trees."""


SERVICE = "run the daemon as a service: sfad install --user, or --system as root"
NO_SYSTEMD = "start the daemon where it may make cgroups: as root, or in a cgroup of your user"
"""How to give the daemon its own cgroups."""


GATEWAY_PATIENCE = 10.0
"""Seconds for the gateway's answer. It waits 5 for its upstreams."""


class Finding(Struct, frozen=True):
    """One line of the report."""

    name: str
    verdict: str
    """`ok`, `warn` or `bad`."""
    detail: str
    fix: str = ""
    """How to fix it."""


@app.command()
def doctor(
    report: Annotated[bool, flag("Print a bug report in Markdown")] = False,
    socket: Socket = None,
    json: Json = False,
) -> int:
    """Check what sfad needs of this machine, and say how to fix it.

    Each line is ok, warn (works with less) or BAD (does not work). Asks the daemon if one is
    running, else checks this session. A report has these lines, versions, changed settings and the
    end of the daemon's log. What looks like a secret is hidden; read it before you publish it.

    Exit codes: 0; 1 if something is BAD and no report is asked for.
    """
    status, settings, reachable = _daemon(socket)
    asked = (
        check(status)
        for check in (_ledger, _config, _containment, _cgroups, _gateway, _linger, _shims)
    )
    findings = [
        reachable,
        *chain.from_iterable(asked),
        *chain(_of_features(), _kernel(), _limits(), _disk(status), _clock()),
    ]
    lines = "\n".join(map(_line, findings))
    if report:
        from ..showing import bug_report  # its imports are of no use to other lines

        text = bug_report.report(status, settings, lines)
        output.answer(json, {"report": text}, text)
        return ExitCode.DONE
    value = {"findings": findings, "containment": status.containment if status else None}
    output.answer(json, value, lines)
    return ExitCode.REFUSED if any(f.verdict == "bad" for f in findings) else ExitCode.DONE


def _line(finding: Finding) -> str:
    verdict = "BAD" if finding.verdict == "bad" else finding.verdict
    fix = f"\n       → {finding.fix}" if finding.fix else ""
    return f"{verdict:<5}  {finding.name}: {finding.detail}{fix}"


def _daemon(socket: str | None) -> tuple[DaemonStatus | None, list[Setting], Finding]:
    try:
        with connect(socket) as client:
            status = client.call(DaemonInfo(id=0), DaemonStatus)
            settings = client.call(Config(id=client.next_id()), ConfigReply).settings
            place = f"sfad {status.version}, pid {status.pid}, answers at {client.path}"
            return status, settings, Finding("daemon", "ok", place)
    except Unreachable as error:
        return None, [], Finding("daemon", *_unreachable(error))
    except Quit as error:
        detail = f"it runs, but does not answer this request: {error.message}"
        return None, [], Finding("daemon", "warn", detail)


def _unreachable(error: Unreachable) -> tuple[str, str, str]:
    by_hand = start_of(error.path)
    fixes = {
        "missing": by_hand
        if by_hand.startswith("as root: ")
        else "the first `sfactl spawn` starts one, or: sfad serve",
        "refused": "start it again: sfad serve, or the first `sfactl spawn`",
        "denied": "use your own daemon, or have the administrator add you",
        "untrusted": (
            "use another socket, or remove this one; "
            "SFAD_SERVICE_USER names one more user to be trusted"
        ),
        "sandbox": "let the sandbox connect to Unix sockets",
    }
    if error.kind in ABSENT and (pid := _holder()):
        detail = f"{error.message}, though pid {pid} holds the state directory{_state(pid)}"
        return "bad", detail, f"look at its log, or end it: kill {pid}"
    verdict = "warn" if error.kind == "missing" else "bad"
    return verdict, error.message, fixes.get(error.kind, "look at the daemon's log")


def _holder() -> int | None:
    with suppress(ValueError):
        return probe.holder(state_dir(os.environ, os.getuid()))
    return None


def _state(pid: int) -> str:
    import psutil  # here, because it takes 35 ms, and no other verb needs it

    with suppress(psutil.Error):
        return f" ({psutil.Process(pid).status()})"
    return ""


def _ledger(status: DaemonStatus | None) -> Iterator[Finding]:
    if status is not None and status.ledger_trouble is not None:
        what, _, fix = status.ledger_trouble.partition("; ")
        yield Finding(
            "ledger", "bad", f"it cannot be written, and nothing new is started: {what}", fix
        )


def _config(status: DaemonStatus | None) -> Iterator[Finding]:
    if status is not None and status.rejected_config is not None:
        detail = f"rejected, an earlier one is in force: {status.rejected_config}"
        yield Finding("config", "bad", detail, "correct it, then: sfactl reload")


def _containment(status: DaemonStatus | None) -> Iterator[Finding]:
    if status is None:
        return
    yield _checked(
        "containment",
        status.containment == "cgroup",
        f"{status.containment}: {status.containment_detail}",
        f"best effort only; {_how_contained()}",
    )


def _how_contained() -> str:
    return SERVICE if probe.systemd_runs() else NO_SYSTEMD


def _cgroups(status: DaemonStatus | None) -> Iterator[Finding]:
    found = probe.cgroups()
    if found.mount is None:
        yield Finding(
            "cgroup v2", "warn", "not mounted", "boot with systemd.unified_cgroup_hierarchy=1"
        )
        return
    yield Finding("cgroup v2", "ok", f"mounted at {found.mount}")
    yield _feature("cgroup.kill", found.kill, "kills a whole tree at once", "needs Linux 5.14")
    yield _feature("cgroup.freeze", found.freeze, "freezes a whole tree at once", "needs Linux 5.2")
    if status is None:  # else the finding "containment" has the daemon's own answer
        may = f"this session {'may' if found.writable else 'may not'} make cgroups in {found.own}"
        yield _checked("delegation", found.writable, may, _how_contained())


def _of_features() -> Iterator[Finding]:
    from sfad.features.listed import FEATURES  # with much of the core, which no other verb needs

    for name, feature in FEATURES.items():
        if feature.doctor:
            module = import_module(f"sfad.features.{name}.{feature.doctor}")
            yield from (Finding(*found) for found in module.findings())


def _gateway(status: DaemonStatus | None) -> Iterator[Finding]:
    if status is None:
        return
    if status.gateway is None:
        yield Finding(
            "gateway",
            "ok",
            "not running; the first call or agent program of a run starts it, "
            "unless gateway.enabled = false, and --gateway always. "
            "Its upstreams and keys are only checked while it runs",
        )
    else:
        yield from _answering("gateway", status.gateway, status.gateway_pid, status.containment)
    for each in status.gateways:
        yield from _answering(
            f"gateway of {output.plain(each.user)}", each.url, each.pid, status.containment
        )


def _answering(title: str, url: str, pid: int | None, containment: str) -> Iterator[Finding]:
    """Return whether a gateway answers, and the state of the upstreams that it calls."""
    try:
        found = _asked(url)
    except (OSError, HTTPException, ValueError) as error:
        ended = "" if pid is not None else "; it has ended and is being started again"
        fix = "the daemon's log says why; until then start runs with --no-gateway"
        yield Finding(title, "bad", f"it does not answer at {url}{ended}: {error}", fix)
        return
    yield Finding(title, "ok", f"pid {pid}, answers at {url}")
    if containment == "cgroup":
        fix = "modprobe tcp_diag; it needs Linux 5.8. Or set containment.mode to tags"
        yield _feature(
            "sock_diag",
            found["cgroup"] is not None,
            "the kernel tells which run opened a connection",
            fix,
        )
    for name, upstream in found["upstreams"].items():
        yield _upstream(f"upstream {name}{title.removeprefix('gateway')}", name, upstream)


def _asked(url: str) -> dict[str, Any]:
    """Return what the gateway tells of itself. Raises `OSError`, `HTTPException`, `ValueError`."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=GATEWAY_PATIENCE)
    try:
        connection.request("GET", "/")
        reply = connection.getresponse()
        text = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        raise ValueError(
            f"HTTP {reply.status}: {output.plain(text.decode(errors='replace').strip())}"
        )
    return cast(dict[str, Any], decode(text))


def _upstream(title: str, name: str, found: Mapping[str, Any]) -> Finding:
    """Return the state of an upstream and of its key."""
    key = f"gateway.upstreams.{name}"
    if found["key_error"] is not None:
        return Finding(
            title,
            "bad",
            f"its key cannot be read: {found['key_error']}",
            f"set {key}.key_file or .key_env, and the key there",
        )
    if (file := found.get("exposed")) is not None:
        return Finding(
            title, "warn", f"other users may read or write its key in {file}", f"chmod 600 {file}"
        )
    if found["error"] is not None:
        return Finding(
            title,
            "warn",
            f"{found['url']} does not answer: {found['error']}",
            f"check the network and {key}.url",
        )
    whose = "the gateway has its key" if found["keyed"] else "callers use their own keys"
    return Finding(title, "ok", f"{found['url']} answers; {whose}")


def _kernel() -> Iterator[Finding]:
    less = "the daemon falls back to /proc and re-checks"
    yield _feature(
        "SO_PEERPIDFD",
        probe.peer_pidfd(),
        "peers are told apart from recycled pids",
        f"Linux 6.5; {less}",
    )
    yield _feature(
        "PIDFD_GET_INFO",
        probe.pidfd_info(),
        "cgroup and exit status of a peer",
        f"Linux 6.13; {less}",
    )
    yield _feature(
        "subreaper",
        probe.subreaper(),
        "orphans of runs come back to the daemon",
        "a sandbox forbids prctl",
    )
    what = "the daemon hears of agents that do not ask, unless they end within milliseconds"
    yield _feature(
        "exec events",
        probe.exec_events(),
        what,
        "Linux 6.6 or root, no container; it looks twice a second",
    )


def _feature(name: str, there: bool, what: str, fix: str) -> Finding:
    return _checked(name, there, what if there else f"not available: {what}", fix)


def _checked(name: str, good: bool, detail: str, fix: str) -> Finding:
    return Finding(name, "ok", detail) if good else Finding(name, "warn", detail, fix)


def _linger(status: DaemonStatus | None) -> Iterator[Finding]:
    lingering = probe.lingering(os.getuid())
    # a daemon that this user starts would run in the user's systemd
    alone = probe.linger_command(os.getuid()) if lingering is False else None
    command = status.linger_command if status is not None else alone
    if command is not None:
        yield Finding(
            "linger", "warn", "off: the daemon and its runs end when the user logs out", command
        )
    elif lingering is not None:
        yield Finding(
            "linger", "ok", "on" if lingering else "off, and this daemon does not need it"
        )


def _shims(status: DaemonStatus | None) -> Iterator[Finding]:
    if status is None:
        return
    for place in dict.fromkeys(filter(None, (status.shim_dir, status.state_dir))):
        if probe.is_noexec(Path(place)):
            detail = (
                f"the filesystem of {place} is mounted noexec, so runs do not find shims there: "
                "what they start by a program's name is no child run"
            )
            fix = "mount it without noexec, or set SFAD_STATE_DIR to a directory elsewhere"
            yield Finding("shims", "bad", detail, fix)
            return
    if not status.shims:
        return
    from .shim import ShimPlace, installed  # is gone with the feature, and so are shims

    found = installed(ShimPlace(Path(status.shim_dir), frozenset(status.shims)))
    outdated = [shim.program for shim in found if shim.state == "outdated"]
    names = ", ".join(shim.program for shim in found)
    if outdated:
        yield Finding(
            "shims",
            "warn",
            f"made by another sfad: {', '.join(outdated)}",
            f"sfactl shim install {' '.join(outdated)}",
        )
    else:
        yield Finding("shims", "ok", f"{names}, first in the PATH of each run")


def _limits() -> Iterator[Finding]:
    yield _limit(
        "open files", resource.RLIMIT_NOFILE, LOW_FILES, "LimitNOFILE= of the unit, or ulimit -n"
    )
    yield _limit(
        "processes",
        resource.RLIMIT_NPROC,
        LOW_PROCESSES,
        "LimitNPROC= and TasksMax= of the unit, or ulimit -u",
    )


def _limit(name: str, kind: int, low: int, fix: str) -> Finding:
    soft = probe.soft_limit(kind)
    enough = soft is None or soft >= low
    return _checked(name, enough, str(soft or "unlimited"), f"raise it to {low}: {fix}")


def _disk(status: DaemonStatus | None) -> Iterator[Finding]:
    try:
        state = Path(status.state_dir) if status is not None else state_dir(os.environ, os.getuid())
        free, inodes = probe.free_bytes(state), probe.free_inodes(state)
    except (OSError, ValueError) as error:
        yield Finding(
            "state directory", "bad", str(error), "set SFAD_STATE_DIR to a directory of your own"
        )
        return
    if inodes is not None and inodes < LOW_INODES:
        left = f"only {inodes} inodes (df -i)" if inodes else "no inodes (df -i)"
        yield Finding(
            "state directory",
            "warn" if inodes else "bad",
            f"{state}: its file system has {left} left, for new files",
            "delete files there: no run is admitted without",
        )
    yield _checked(
        "state directory",
        free >= LOW_DISK,
        f"{state}, {output.size(free)} free",
        "free some space: no run is admitted on a full disk",
    )


def _clock() -> Iterator[Finding]:
    if not probe.plausible_time():
        yield Finding(
            "clock",
            "bad",
            "it is wrong by years",
            "set it: times in the ledger and shown deadlines are wrong",
        )
    elif probe.clock_synchronised() is False:
        yield Finding("clock", "warn", "it is not synchronised", "timedatectl set-ntp true")
    else:
        yield Finding("clock", "ok", "plausible")
