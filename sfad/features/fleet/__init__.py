"""Trees on many machines (docs/fleet.md): this daemon as a node of a cluster of Ray.

`feature`   the declaration
`messages`  what is asked of the fleet, what nodes ask each other, files that come in pieces
`part`      what of this a daemon does
`node`      this node: its actor, ways to other nodes, and what is said about granted runs
`preparing` what is decided about runs that are sent to other nodes, or come from them
`process`   starts what makes this node's actor, and what keeps Ray
`ray`       what knows Ray: that process, the actor, and what keeps Ray alive
`keeper`    finds out which node is the keeper, asks it for other features, and shares what these
            know
`deciding`  the half in the core
`slots`, `quotas` quotas of trees that all nodes share: what the keeper gives, and who asks it
`awaited`   runs of other nodes that runs here wait for
`verbs`     answers the actor, other nodes, and `sfactl fleet`
`file_verbs` answers `put_files`, `fetch_files` and `get_files`
`nodes`     the nodes, and how each is asked
`pace`      how long one is waited for
`health`    how the nodes are: ready, or what is missing
`answers`   answers of a whole fleet, for the clients that ask for them
`files`     files that are sent with runs, and brought back
"""
