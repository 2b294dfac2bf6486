"""The environment of a run: what the client sent, without variables of the daemon or of another
run, plus SFA_*."""

from ...agents import OWN_SERVERS
from ...features.listed import FEATURES
from ...protocol.known import TIME_SAID
from ...runs.live import Live

_FOREIGN = (b"NOTIFY_SOCKET=", b"LISTEN_", b"WATCHDOG_", b"MAINPID=", b"FDSTORE=")
"""Variables by which systemd speaks to one service. A run that inherits them could answer in the
service's name."""

_OWN = (
    b"SFA_RUN_ID=", b"SFA_ROOT_ID=", b"SFA_PARENT_ID=", b"SFA_NAME=", b"SFA_DEPTH=",
    b"SFA_MAX_DEPTH=", b"SFA_CALL_CHAIN=", b"SFA_DEADLINE=", b"SFA_ATTEMPT=", b"SFA_SOCKET=",
    b"SFA_COOKIE=", b"SFA_ALLOWED_TOOLS=", b"SFA_BLOCKED_TOOLS=", b"SFA_NO_LOG=", b"SFA_QUIET=",
    b"SFA_TASK=", b"SFA_MODEL=", b"SFA_PROVIDER=", b"SFA_INSTRUCTIONS=",
    b"SFA_MAX_DESCENDANTS=", TIME_SAID.encode() + b"=",
    *(f"{name}=".encode() for each in FEATURES.values() for name in each.variables),
)  # fmt: skip


def run_environment(live: Live, *, socket: str, deadline: float) -> list[bytes]:
    """Return `KEY=VALUE` for execve(2). `deadline` is in Unix seconds. The daemon does not trust
    these variables itself."""
    told = _told(live, socket, deadline)
    kept = [
        item
        for item in live.command.env
        if not item.startswith(_FOREIGN) and not item.startswith(_OWN)
    ]
    set_by_client = {item.partition(b"=")[0] for item in kept}
    kept += [item for name, item in _ALONE.items() if name not in set_by_client]
    return kept + [f"{key}={value}".encode(errors="surrogateescape") for key, value in told]


_ALONE = {
    name.encode(): f"{name}={value}".encode()
    for server in OWN_SERVERS.values()
    for name, value in server.variables.items()
}
"""Variables with which programs hand nothing to servers of their own."""


def _told(live: Live, socket: str, deadline: float) -> list[tuple[str, str]]:
    run, output = live.run, live.output
    lineage, terms = run.lineage, run.asked.terms
    told = [
        ("SFA_RUN_ID", run.id),
        ("SFA_ROOT_ID", lineage[0].id),
        ("SFA_PARENT_ID", run.parent.id if run.parent is not None else ""),
        # what the loop rule compares: a container passes it back in a claim
        ("SFA_NAME", run.identity[1]),
        ("SFA_DEPTH", str(len(lineage) - 1 + run.root.birth.claimed_depth)),
        ("SFA_MAX_DEPTH", str(run.birth.max_depth.value)),
        ("SFA_MAX_DESCENDANTS", str(run.birth.max_descendants.value)),
        # without the run itself: an agent that looks for its own name in the chain must not find
        # itself
        (
            "SFA_CALL_CHAIN",
            ",".join([*run.claimed_chain, *(r.identity[1] for r in lineage[:-1])]),
        ),
        ("SFA_DEADLINE", f"{deadline:.0f}"),
        ("SFA_ATTEMPT", str(run.attempt)),
        ("SFA_SOCKET", socket),
    ]
    optional = [
        ("SFA_ALLOWED_TOOLS", ",".join(terms.allowed_tools)),
        ("SFA_BLOCKED_TOOLS", ",".join(terms.blocked_tools)),
        ("SFA_NO_LOG", "" if output.log else "1"),
        ("SFA_QUIET", "1" if output.quiet else ""),
        (
            TIME_SAID,
            f"{min(each.allowed_time for each in lineage):.15g}" if run.time_said else "",
        ),
    ]
    agent = [(f"SFA_{name.upper()}", text) for name, text in live.command.placeholders.items()]
    return told + [(key, value) for key, value in optional if value] + agent
