"""The environment of a run: what the client sent, without variables of the daemon or of another run, plus SFA_*."""

from collections.abc import Iterator, Sequence

from ..core.run import Run
from ..protocol.known import BASE_URLS
from ..protocol.messages import Spawn

_FOREIGN = (b"NOTIFY_SOCKET=", b"LISTEN_", b"WATCHDOG_", b"MAINPID=", b"FDSTORE=")
"""Variables by which systemd speaks to one service. A run that inherits them could answer in the service's name."""

_OWN = (
    b"SFA_RUN_ID=", b"SFA_ROOT_ID=", b"SFA_PARENT_ID=", b"SFA_NAME=", b"SFA_DEPTH=", b"SFA_MAX_DEPTH=", b"SFA_CALL_CHAIN=",
    b"SFA_DEADLINE=", b"SFA_ATTEMPT=", b"SFA_SOCKET=", b"SFA_COOKIE=", b"SFA_ALLOWED_TOOLS=", b"SFA_BLOCKED_TOOLS=",
    b"SFA_NO_LOG=", b"SFA_QUIET=", b"SFA_TASK=", b"SFA_MODEL=", b"SFA_PROVIDER=", b"SFA_INSTRUCTIONS=",
)  # fmt: skip

_PROXIES = (b"http_proxy=", b"https_proxy=", b"all_proxy=")
_NO_PROXY = (b"no_proxy", b"NO_PROXY")
"""Most programs read the first one first."""


def run_environment(
    run: Run, spawn: Spawn, *, socket: str, deadline: float, gateway: str | None = None, shims: bytes | None = None
) -> list[bytes]:
    """Return `KEY=VALUE` for execve(2). `deadline` is in Unix seconds; `gateway` is the address of the gateway; `shims` is the
    directory that comes first in PATH. The daemon does not trust these variables itself."""
    told = [*_told(run, spawn, socket, deadline), *_leading_to(gateway)]
    own = _OWN + tuple(f"{key}=".encode() for key, _ in _leading_to(gateway))
    kept = [item for item in spawn.env if not item.startswith(_FOREIGN) and not item.startswith(own)]
    if gateway is not None:
        kept = _exempt_from_proxies(kept)
    if shims is not None:
        kept = [_beginning_with(shims, item) if item.startswith(b"PATH=") else item for item in kept]
    return kept + [f"{key}={value}".encode(errors="surrogateescape") for key, value in told]


def _exempt_from_proxies(env: list[bytes]) -> list[bytes]:
    """Return an environment in which no program looks for the gateway behind a proxy."""
    if not any(item.lower().startswith(_PROXIES) and not item.endswith(b"=") for item in env):
        return env
    no_proxy = {name: value for name, _, value in (item.partition(b"=") for item in env) if name in _NO_PROXY}
    hosts = next((value for name in _NO_PROXY if (value := no_proxy.get(name))), b"")
    if hosts.strip() != b"*" and b"127.0.0.1" not in (host.strip() for host in hosts.split(b",")):
        hosts += b",127.0.0.1" if hosts else b"127.0.0.1"
    return [item for item in env if item.partition(b"=")[0] not in _NO_PROXY] + [name + b"=" + hosts for name in _NO_PROXY]


def _beginning_with(shims: bytes, path: bytes) -> bytes:
    """Return the variable PATH with a directory in front, once."""
    others = [directory for directory in path.removeprefix(b"PATH=").split(b":") if directory != shims]
    return b"PATH=" + b":".join([shims, *others])


def _told(run: Run, spawn: Spawn, socket: str, deadline: float) -> Sequence[tuple[str, str]]:
    lineage = run.lineage
    told = [
        ("SFA_RUN_ID", run.id),
        ("SFA_ROOT_ID", lineage[0].id),
        ("SFA_PARENT_ID", run.parent.id if run.parent is not None else ""),
        # what the loop rule compares: a container passes it back in a claim
        ("SFA_NAME", run.identity[1]),
        ("SFA_DEPTH", str(len(lineage) - 1)),
        ("SFA_MAX_DEPTH", str(run.birth.max_depth.value)),
        # without the run itself: an agent that looks for its own name in the chain must not find itself
        ("SFA_CALL_CHAIN", ",".join(r.identity[1] for r in lineage[:-1])),
        ("SFA_DEADLINE", f"{deadline:.0f}"),
        ("SFA_ATTEMPT", str(run.attempt)),
        ("SFA_SOCKET", socket),
    ]
    optional = [
        ("SFA_ALLOWED_TOOLS", ",".join(spawn.allowed_tools)),
        ("SFA_BLOCKED_TOOLS", ",".join(spawn.blocked_tools)),
        ("SFA_NO_LOG", "" if spawn.log else "1"),
        ("SFA_QUIET", "1" if spawn.quiet else ""),
    ]
    agent = [(f"SFA_{name.upper()}", text) for name, text in spawn.placeholders.items()]
    return told + [(key, value) for key, value in optional if value] + agent


def _leading_to(gateway: str | None) -> Iterator[tuple[str, str]]:
    """Yield the variables in which programs find where their model is."""
    if gateway is not None:
        for variable, upstream in BASE_URLS.items():
            yield variable, f"{gateway}/{upstream}"
