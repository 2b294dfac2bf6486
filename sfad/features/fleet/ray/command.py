"""The command that starts this machine's part of the Ray cluster. It imports nothing of Ray."""

import sys
from pathlib import Path

PORT = 6379
"""Of the cluster's head, if no other one is named."""
HEAD = "head"
"""In place of an address: this machine is the head."""
STORE = 100_000_000
"""Bytes of the object store: the fleet puts nothing into it, and Ray's own default is a third of
the memory."""


def program() -> Path:
    """Return the `ray` of this installation, which may not be there."""
    return Path(sys.executable).with_name("ray")


def arguments(where: str, node: str) -> list[str]:
    """Return the words after `ray`. `where`: `head`, `head:PORT`, or the address of the head."""
    words = ["start", "--block", f"--labels=sfad-node={node}", f"--object-store-memory={STORE}"]
    words += ["--disable-usage-stats", "--include-log-monitor=false"]
    name, _, port = where.partition(":")
    if name != HEAD:
        return [*words, f"--address={where}"]
    return [*words, "--head", f"--port={port or PORT}", "--include-dashboard=false"]


def environment(token: Path) -> dict[str, str]:
    """Return the variables with which Ray, and what joins the cluster, reads the cluster's
    token."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def endurance() -> dict[str, str]:
    """Return the variables with which Ray's own processes go on while the head is away, and are of
    use again soon. Ray's defaults are for machines that all begin and end together."""
    return {
        # else all processes end when the head was away for a minute
        "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
        # how often a raylet asks whether the head knows it: a head that has begun anew does not,
        # nor does one that has given the node up; else once a minute
        "RAY_raylet_liveness_self_check_interval_ms": "3000",
        # how long the kernel sends again what is not acknowledged (TCP_USER_TIMEOUT), each time
        # after a longer pause; else two minutes, and a network that is back is not noticed
        "RAY_grpc_client_keepalive_timeout_ms": "10000",
        # else 15: while agents keep all processors busy, the actor, through which nodes speak with
        # each other, gets no time
        "RAY_worker_niceness": "0",
        # no second worker beside that of the actor
        "RAY_prestart_worker_first_driver": "0",
    }
