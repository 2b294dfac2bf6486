"""What Ray knows of the nodes, and the placement group of each tree: Ray's reservation for it while
it lives.

By that Ray's other work and its autoscaler know of the tree.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)
from ray.util import list_named_actors
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from ....protocol.types import Placing, RunId
from ..messages import FleetNode, FleetTold
from . import LABEL, NAMESPACE, actor_name

_PREFIX = actor_name("")


def names() -> list[str]:
    """Return the nodes with an actor, alive or not. Raises what Ray raises."""
    found: list[Any] = list_named_actors(all_namespaces=True)
    return sorted(
        each["name"].removeprefix(_PREFIX)
        for each in found
        if each["namespace"] == NAMESPACE and each["name"].startswith(_PREFIX)
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


_MACHINES = "machines/"


def register(node: str) -> None:
    """Note on which of Ray's nodes this actor is: where it has no label, nothing else tells.
    Raises what Ray raises."""
    machine: str = ray.get_runtime_context().get_node_id()
    _internal_kv_put(f"{_MACHINES}{node}".encode(), machine.encode(), namespace=NAMESPACE)


def all_nodes() -> list[FleetNode]:
    """Return the nodes with an actor, as Ray knows them. Raises what Ray raises."""
    ray_nodes: Sequence[Any] = ray.nodes()
    by_id = {each["NodeID"]: each for each in ray_nodes}
    by_label = {
        each["Labels"].get(LABEL): each
        for each in sorted(ray_nodes, key=lambda each: bool(each["Alive"]))
    }
    resting, found = drained(), []
    for name in names():
        machine = by_label.get(name)
        if machine is None:
            key = f"{_MACHINES}{name}".encode()
            machine = by_id.get((_internal_kv_get(key, namespace=NAMESPACE) or b"").decode())
            if machine is not None and LABEL in machine["Labels"]:
                machine = None  # it is another node's
        found.append(_node(name, machine, drained=name in resting))
    return found


def _node(name: str, machine: Mapping[str, Any] | None, *, drained: bool) -> FleetNode:
    return FleetNode(
        name=name,
        alive=bool(machine and machine["Alive"]),
        address=machine["NodeManagerAddress"] if machine else "",
        resources={key: amount for key, amount in machine["Resources"].items() if ":" not in key}
        if machine
        else {},
        labels=dict(machine["Labels"]) if machine else {},
        drained=drained,
        head=bool(machine and "node:__internal_head__" in machine["Resources"]),
    )


LEAST_CPU = 0.01
"""A run that asks for nothing: an agent mostly waits for its model. Ray reserves no nothing."""


AGAIN = "@"
"""Between a run and the node that it was lost with, in the name of what is reserved for it then."""
SOON = 0.5
"""Seconds in which Ray usually reserves. Until then the daemon is not told that a run waits."""


class Places:
    def __init__(self, node: str) -> None:
        self._node = node
        self._prefix = f"sfad-{node}-"
        self.waiting: dict[RunId, tuple[PlacementGroup, Placing]] = {}
        self._since: dict[RunId, float] = {}
        self._told: dict[RunId, FleetTold] = {}
        """What was told last of those that wait."""

    def place(self, run: RunId, placing: Placing, *, away: str = "") -> None:
        """Reserve for a run, unless that was done before. `away`: the node that it was lost with.
        Ray may not have noticed, and has it reserved there still."""
        name = self._prefix + run
        if away:
            self._remove(name)
            name += f"{AGAIN}{away}"
        try:
            group = get_placement_group(name)
        except ValueError:
            bundle = {"CPU": placing.cpus or LEAST_CPU}
            if placing.gpus:
                bundle["GPU"] = placing.gpus
            if placing.memory:
                bundle["memory"] = float(placing.memory)
            group = placement_group(
                [bundle],
                name=name,
                lifetime="detached",
                bundle_label_selector=[self._selector(placing, away)],
            )
        self.waiting[run] = group, placing
        self._since[run] = time.monotonic()

    def _selector(self, placing: Placing, away: str) -> dict[str, str]:
        labels, resting = (
            dict(placing.labels),
            drained() | ({away} if away and placing.node is None else set()),
        )
        if placing.node is not None and placing.node in resting:
            raise ValueError(
                f"node {placing.node} is drained: "
                f"it takes no more runs (sfactl fleet drain --undo {placing.node})"
            )
        if placing.node is not None:
            labels[LABEL] = placing.node
        elif LABEL not in labels and any(
            LABEL not in each["Labels"] for each in ray.nodes() if each["Alive"]
        ):
            named = sorted(
                {each["Labels"][LABEL] for each in ray.nodes() if LABEL in each["Labels"]}
            )
            labels[LABEL] = (
                # a machine without a daemon takes none
                f"in({','.join(each for each in named if each not in resting)})"
            )
        elif resting:
            labels[LABEL] = f"!in({','.join(sorted(resting))})"
        return labels

    def free(self, run: RunId) -> None:
        self.waiting.pop(run, None)
        self._told.pop(run, None)
        if not self._remove(self._prefix + run):
            for name in [each for each in self._names() if self._run_of(each) == run]:
                self._remove(name)

    def _names(self) -> Iterator[str]:
        table: Mapping[str, Any] = placement_group_table()
        yield from (
            each["name"]
            for each in table.values()
            if each["name"].startswith(self._prefix) and each["state"] != "REMOVED"
        )

    def _run_of(self, name: str) -> RunId:
        return name.removeprefix(self._prefix).partition(AGAIN)[0]

    def _remove(self, name: str) -> bool:
        """Remove what is reserved under a name. Return whether there was anything."""
        try:
            remove_placement_group(get_placement_group(name))
        except ValueError:
            return False
        return True

    def keep(self, runs: Iterable[RunId]) -> None:
        """Remove the reservations of this node's runs that are not live any more."""
        kept = set(runs)
        for name in list(self._names()):
            if self._run_of(name) not in kept:
                self._remove(name)

    def look(self) -> list[FleetTold]:
        """Return what has changed of those that wait."""
        found = []
        for run, (group, placing) in list(self.waiting.items()):
            told = self._look(run, group, placing)
            if told.node is not None or told.refused is not None:
                del self.waiting[run]
                self._told.pop(run, None)
            elif self._told.get(run) == told or time.monotonic() - self._since[run] < SOON:
                continue
            else:
                self._told[run] = told
            found.append(told)
        return found

    def _look(self, run: RunId, group: PlacementGroup, placing: Placing) -> FleetTold:
        # not `group.wait(0)`: Ray gives that request no time at all, and it may fail each time
        table: Mapping[str, Any] = placement_group_table(group)
        if table.get("state") != "CREATED":
            return self._why(run, placing)
        (where,) = table["bundles_to_node_id"].values()
        labels: Mapping[str, str] = next(
            (each["Labels"] for each in ray.nodes() if each["NodeID"] == where), {}
        )
        if LABEL not in labels:
            return FleetTold(
                id=0,
                run=run,
                refused=f"Ray has chosen a node without the label {LABEL}, so without a daemon",
            )
        return FleetTold(id=0, run=run, node=labels[LABEL])

    def _why(self, run: RunId, placing: Placing) -> FleetTold:
        wanted = {
            "CPU": placing.cpus or LEAST_CPU,
            "GPU": placing.gpus,
            "memory": float(placing.memory),
        }
        asked = ", ".join(
            f"{amount:g} {name}"
            for name, amount in wanted.items()
            if amount and (name != "CPU" or placing.cpus)
        )
        where = placing.node or ", ".join(f"{key}={value}" for key, value in placing.labels.items())
        able = [
            each["Labels"].get(LABEL, "?")
            for each in ray.nodes()
            if each["Alive"]
            and (placing.node is None or each["Labels"].get(LABEL) == placing.node)
            and all(each["Labels"].get(key) == value for key, value in placing.labels.items())
            and all(
                each["Resources"].get(name, 0) >= amount
                for name, amount in wanted.items()
                if amount
            )
        ]
        what = f"{asked or 'room'}{f' on {where}' if where else ''}"
        if able:
            return FleetTold(
                id=0, run=run, waits=f"{what}: too little is free now on {', '.join(sorted(able))}"
            )
        if away := _away(placing):
            return FleetTold(
                id=0, run=run, waits=f"{what}: {', '.join(away)} cannot take it now ({_SEE})"
            )
        return FleetTold(
            id=0,
            run=run,
            waits=f"{what}: no node that is there now could ever take it",
            infeasible=True,
        )


_SEE = "its part of Ray is gone: sfactl fleet nodes"


def _away(placing: Placing) -> list[str]:
    """Return the nodes that are known, might take a run, and whose raylets are gone: what they have
    is not known any more."""
    alive = {each["Labels"].get(LABEL) for each in ray.nodes() if each["Alive"]}
    wanted = placing.node or placing.labels.get(LABEL)
    return [name for name in names() if name not in alive and wanted in {None, name}]
