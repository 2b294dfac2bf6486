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
    """Return the variables with which Ray's own processes outlive a head that is away, and notice
    within seconds one that has forgotten them, as a head has that begins anew. Ray's defaults are
    a minute for each: all ended when a head was away for so long, and lived on as long without
    being of use once it was back. For each worker, Ray also starts a second one in advance."""
    return {
        "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
        "RAY_raylet_liveness_self_check_interval_ms": "3000",
        "RAY_prestart_worker_first_driver": "0",
    }
