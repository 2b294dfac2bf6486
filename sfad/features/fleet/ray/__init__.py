"""The part of a node that knows Ray: a process that makes the node's actor, and the actor.

Nothing else imports Ray, nor do `command`, `keeping` and `installing`. The daemon, and `sfactl`,
reach other nodes through sockets that the actor passes on.

`__main__`  makes this node's actor, and ends
`actor`     the actor: calls of the other nodes' actors
`link`      its connection to the daemon
`tunnels`   sockets whose bytes go to the daemon of another node
`command`   the command that starts this machine's part of the cluster
`keeping`   keeps that where no systemd does
`installing` makes it a service of systemd
`placing`   what Ray knows of the nodes; placement groups, one for each tree
"""

NAMESPACE = "sfad"
"""Of the actors in Ray."""
LABEL = "sfad-node"
"""The label of a Ray node that names the daemon on it."""


NO_RAYLET = "no raylet with the label"
"""How the words begin of the process that makes the actor where this node has no raylet."""


def actor_name(node: str) -> str:
    return f"sfad-node-{node}"
