"""What Ray knows of the nodes, and which of them have a daemon."""

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list, _internal_kv_put
from ray.util import list_named_actors

from .. import __version__
from ..protocol.messages import FLEET_VERSION, FleetNode
from . import LABEL, NAMESPACE, actor_name

ANSWER = 2.0
"""Seconds that other nodes have to say who they are."""

_PREFIX = actor_name("")


def names() -> list[str]:
    """Return the nodes with an actor, alive or not. Raises what Ray raises."""
    found: list[Any] = list_named_actors(all_namespaces=True)
    return sorted(
        each["name"].removeprefix(_PREFIX) for each in found if each["namespace"] == NAMESPACE and each["name"].startswith(_PREFIX)
    )


_DRAINED = b"drained/"


def drained() -> set[str]:
    """Return the nodes on which no more runs are to be placed. Raises what Ray raises."""
    keys: list[bytes] = _internal_kv_list(_DRAINED, namespace=NAMESPACE)
    return {key.removeprefix(_DRAINED).decode() for key in keys}


def drain(node: str, *, undo: bool) -> str | None:
    """Place no more runs on a node, or place runs there again. Return why that cannot be."""
    if node not in names():
        return f"there is no node {node}; sfactl fleet nodes lists them"
    if undo:
        _internal_kv_del(_DRAINED + node.encode(), namespace=NAMESPACE)
    else:
        _internal_kv_put(_DRAINED + node.encode(), b"1", namespace=NAMESPACE)
    return None


def identity(node: str) -> dict[str, Any]:
    """Return what this node says of itself."""
    return {
        "name": node,
        "version": __version__,
        "python": platform.python_version(),
        "ray": ray.__version__,
        "fleet": FLEET_VERSION,
        "ray_node": ray.get_runtime_context().get_node_id(),
    }


def all_nodes(own: Mapping[str, Any]) -> list[FleetNode]:
    """Return the nodes with an actor, asked in parallel who they are, and Ray's nodes without one."""
    asked: dict[str, Any] = {}
    for name in names():
        if name != own["name"]:
            with suppress(ValueError):  # its actor has ended meanwhile
                # not a handle that was used before: it may be of an actor that another one has replaced
                asked[name] = ray.get_actor(actor_name(name), namespace=NAMESPACE).identity.remote()
    answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER) if asked else ([], [])
    said: dict[str, Mapping[str, Any] | None] = {own["name"]: own}
    for name, ref in asked.items():
        said[name] = _got(ref) if ref in answered else None
    ray_nodes: Sequence[Any] = ray.nodes()
    by_id = {each["NodeID"]: each for each in ray_nodes}
    by_label = {each["Labels"].get(LABEL): each for each in sorted(ray_nodes, key=lambda each: bool(each["Alive"]))}
    found, resting = [], drained()
    for name, words in sorted(said.items()):
        machine = by_id.get(words["ray_node"]) if words is not None else by_label.get(name)
        found.append(_node(name, words, machine, drained=name in resting))
    return found


def _got(ref: Any) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = ray.get(ref)
    except ray.exceptions.RayError:
        return None
    return found


def _node(name: str, said: Mapping[str, Any] | None, machine: Mapping[str, Any] | None, *, drained: bool) -> FleetNode:
    refused = None
    if said is not None and said["fleet"] != FLEET_VERSION:
        refused = f"it has version {said['fleet']} of the fleet's messages, this node {FLEET_VERSION}"
    return FleetNode(
        name=name,
        alive=bool(machine and machine["Alive"]),
        address=machine["NodeManagerAddress"] if machine else "",
        version=said["version"] if said else "",
        python=said["python"] if said else "",
        ray=said["ray"] if said else "",
        refused=refused,
        resources={key: amount for key, amount in machine["Resources"].items() if ":" not in key} if machine else {},
        labels=dict(machine["Labels"]) if machine else {},
        drained=drained,
        head=bool(machine and "node:__internal_head__" in machine["Resources"]),
    )
