"""The environment of a run: what the client sent, without variables of the daemon or of another
run, plus SFA_*."""

from functools import lru_cache

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
    run, output = live.run, live.output
    lineage, terms = run.lineage, run.asked.terms
    above = lineage[:-1]
    # without the run itself: an agent that looks for its own name in the chain must not find itself
    chain = (
        [*run.claimed_chain, *[each.identity[1] for each in above]]
        if above
        else (run.claimed_chain)
    )
    told = {
        "SFA_RUN_ID": run.id,
        "SFA_ROOT_ID": lineage[0].id,
        "SFA_PARENT_ID": above[-1].id if above else "",
        # what the loop rule compares: a container passes it back in a claim
        "SFA_NAME": run.identity[1],
        "SFA_DEPTH": str(len(above) + run.root.birth.claimed_depth),
        "SFA_MAX_DEPTH": str(run.birth.max_depth.value),
        "SFA_MAX_DESCENDANTS": str(run.birth.max_descendants.value),
        "SFA_CALL_CHAIN": ",".join(chain),
        "SFA_DEADLINE": f"{deadline:.0f}",
        "SFA_ATTEMPT": str(run.attempt),
        "SFA_SOCKET": socket,
    }
    if terms.allowed_tools:
        told["SFA_ALLOWED_TOOLS"] = ",".join(terms.allowed_tools)
    if terms.blocked_tools:
        told["SFA_BLOCKED_TOOLS"] = ",".join(terms.blocked_tools)
    if not output.log:
        told["SFA_NO_LOG"] = "1"
    if output.quiet:
        told["SFA_QUIET"] = "1"
    if run.time_said:
        told[TIME_SAID] = f"{min(each.allowed_time for each in lineage):.15g}"
    for name, text in live.command.placeholders.items():
        told[f"SFA_{name.upper()}"] = text
    env = [*_kept(tuple(live.command.env))]
    for name, text in told.items():
        env.append(f"{name}={text}".encode(errors="surrogateescape"))
    return env


@lru_cache(maxsize=1)  # runs of a shell loop have the same
def _kept(env: tuple[bytes, ...]) -> list[bytes]:
    """Return what a run keeps of what its client sent."""
    kept = [item for item in env if not item.startswith(_FOREIGN + _OWN)]
    set_by_client = {item.partition(b"=")[0] for item in kept}
    return kept + [item for name, item in _ALONE.items() if name not in set_by_client]


_ALONE = {
    name.encode(): f"{name}={value}".encode()
    for server in OWN_SERVERS.values()
    for name, value in server.variables.items()
}
"""Variables with which programs hand nothing to servers of their own."""
