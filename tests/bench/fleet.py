"""How many messages a fleet needs: `python -m tests.bench.fleet [NODES TREES]`. The network is
simulated; the core decides.

Every tree has children on other nodes, and each run makes model calls, which its node admits alone.
A central daemon would be asked for each start, each call and each end."""

from __future__ import annotations

import sys
import time
from random import Random

from sfad.core.state.money import to_nanos
from sfad.protocol.types import Action, Bound, Placing
from tests.core.policies import policy as policy_with
from tests.core.transcript import limits
from tests.features.fleet.in_memory import Net

CHILDREN = 3
"""Of each tree, on other nodes."""
CALLS = 24
"""Of each run in a minute."""
INTERVAL = 5.0
"""Seconds between messages of two nodes while nothing happens: a heartbeat."""


def simulate(nodes: int, trees: int, *, lost: float = 0.0, seed: int = 1) -> dict[str, float]:
    """Let `trees` trees for each node live for a minute, with a share of the messages lost. Return
    the figures."""
    random = Random(seed)
    policy = policy_with(max_time=1e6, trees=10**6, trees_per_user=10**6, spawns_per_hour=10**9)
    net = Net(policy, [f"n{n}" for n in range(nodes)], random)
    given = limits("time=3600 cost=1:refuse")
    for node in net.nodes.values():
        for _ in range(trees):
            before = len(node.admitted)
            node.spawn("root", limits=given, max_descendants=Bound(value=40, source="bench"))
            root = node.admitted[before].id
            for n in range(CHILDREN):
                to = random.choice([name for name in net.names if name != node.name])
                asked = {"limits": limits("time=3600"), "on_limit": Action.REFUSE}
                node.spawn(f"child{n}", inside=root, placing=Placing(node=to), **asked)
    central = starts = nodes * trees * (1 + CHILDREN)
    for _ in range(3):
        _tend(net, random, lost)
    placed = net.sent
    for _ in range(int(60 / INTERVAL)):
        for node in net.nodes.values():
            for run in sorted(node.alive):
                for _ in range(int(CALLS * INTERVAL / 60)):
                    node.spend(run, to_nanos(0.001))
                    central += 2  # reserve, settle
        net.wait(INTERVAL)
        _tend(net, random, lost)
    steady = net.sent - placed
    runs = sum(len(node.alive) for node in net.nodes.values())
    spent = sum(sum(node.spent.values()) for node in net.nodes.values())
    assert spent <= to_nanos(1.0) * nodes * trees
    for node in net.nodes.values():
        for top in node.machine.tree.roots():
            if top.lease is None:
                node.stop(top.id)
    for _ in range(6):
        _tend(net, random, 0.0)
    net.wait(400)
    for _ in range(3):
        _tend(net, random, 0.0)
    assert not any(node.alive or len(node.machine.tree) for node in net.nodes.values())
    return {
        "nodes": nodes,
        "live runs": runs,
        "messages to place": placed,
        "messages a minute": steady,
        "a minute and node": round(steady / nodes, 1),
        "asked of a central daemon a minute": central - starts,
    }


def _tend(net: Net, random: Random, lost: float) -> None:
    for node in net.nodes.values():
        node.tend()
    for _ in range(2):  # a request, its answer
        flying, net.flying = net.flying, []
        random.shuffle(flying)
        for to, message in flying:
            if random.random() >= lost:
                net.nodes[to].receive(message)


def main() -> None:
    sizes = (
        [(int(sys.argv[1]), int(sys.argv[2]))]
        if len(sys.argv) > 2
        else [(10, 1), (100, 1), (100, 10), (1000, 1)]
    )
    for nodes, trees in sizes:
        began = time.monotonic()
        found = simulate(nodes, trees, lost=0.02)
        print(
            "  ".join(f"{name} {figure:g}" for name, figure in found.items()),
            f"({time.monotonic() - began:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
