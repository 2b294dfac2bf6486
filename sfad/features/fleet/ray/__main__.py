"""Makes this node's actor, and ends. The daemon starts it where no actor is connected.

A driver of Ray takes 80 MiB and 28 threads, and Ray ends it when the head of the cluster dies. So
this driver ends as soon as there is an actor, which lives on without it."""

import logging
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from . import LABEL, NAMESPACE, NO_RAYLET, actor_name
from .command import environment

PATIENCE = 5.0
"""Seconds that an actor which is there has to connect to its daemon."""
MAKING = 60.0
"""Seconds that Ray may take to make it again."""


def main() -> int:
    parser = ArgumentParser(prog="sfad fleet")
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("address")
    parser.add_argument("--token-file", type=Path)
    given = parser.parse_args()
    if given.token_file is not None:
        os.environ |= environment(given.token_file)
    if not given.insecure and os.environ.get("RAY_AUTH_MODE") != "token":
        print(
            "neither fleet.token_file is set nor RAY_AUTH_MODE=token in the daemon's environment, "
            "so any process that reaches the cluster could use this node; "
            "set one on all nodes (docs/fleet.md), or set fleet.insecure = true"
        )
        return 78
    try:
        import ray
    except ImportError as error:
        print(f"Ray is not installed for {sys.executable}: {error}; install sfad[fleet]")
        return 69
    logging.disable(logging.CRITICAL)
    try:
        ray.init(
            given.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL
        )
        return make(given)
    except Exception as error:  # noqa: BLE001 - of the many that Ray raises; the daemon logs it and tries again
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        print(f"{type(error).__name__}: {first}")
        return 69


def make(given: Namespace) -> int:
    """Make the actor, unless one of this daemon is there and connects."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from .actor import NodeActor

    name = actor_name(given.node)
    labelled = [
        each for each in ray.nodes() if each["Alive"] and each["Labels"].get(LABEL) == given.node
    ]
    if labelled:
        where: dict[str, Any] = {"label_selector": {LABEL: given.node}}
    else:
        own = ray.get_runtime_context().get_node_id()
        label = next(
            (each["Labels"].get(LABEL) for each in ray.nodes() if each["NodeID"] == own), None
        )
        if label is not None:
            # the raylet of this machine belongs to another node
            print(
                f"{NO_RAYLET} {LABEL}={given.node} is alive (the one that answers "
                f"here is of node {label}); start it: ray start … --labels {LABEL}={given.node}"
            )
            return 69
        where = {"scheduling_strategy": NodeAffinitySchedulingStrategy(own, soft=False)}
    if (before := _before(name)) is not None:
        if _connects(before, given.daemon):
            return 0
        ray.kill(before, no_restart=True)
        while _before(name) is not None:
            time.sleep(0.1)
    made = ray.remote(NodeActor)
    actor = made.options(
        name=name, lifetime="detached", max_restarts=-1, num_cpus=0, **where
    ).remote(given.node, given.daemon)
    ray.get(actor.identity.remote(), timeout=90)
    return 0


def _before(name: str) -> Any:
    import ray

    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def _connects(actor: Any, daemon: str) -> bool:
    """Return whether this actor is of this daemon, and connects to it within a while."""
    import ray

    began = time.monotonic()
    until = began + PATIENCE
    while (left := until - time.monotonic()) > 0:
        try:
            said = ray.get(actor.identity.remote(), timeout=left)
        except ray.exceptions.GetTimeoutError:
            if _is_made(actor) or time.monotonic() - began > MAKING:
                return False
            # on a busy machine that takes long, and to make another one would take longer
            until = time.monotonic() + PATIENCE
            continue
        except ray.exceptions.RayError:
            return False
        if said["daemon"] != daemon:
            return False
        if said["connected"]:
            return True
        time.sleep(0.1)
    return False


def _is_made(actor: Any) -> bool:
    """Return whether Ray has a process for this actor, as far as it is known."""
    from ray._private.state import state  # the public way asks the dashboard, which is not there

    try:
        found = state.actor_table(actor._actor_id.hex())
    except Exception:  # noqa: BLE001 - of the many that Ray raises; without the answer the actor counts as hung
        return True
    return found.get("State") not in {"DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING"}


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # Ray's own end takes a second
