"""The gateway: a process of its own between the agents and the model's API. It asks the daemon before each call.

`proxy`        the connections of agents
`http_server`  one connection: requests in, replies out
`callers`      the user and the cgroup of a connection's other end
`exchange`     one request: whose it is, whether its tree can pay for it, and the reply as it comes
`call_record`  what a call has used, read from its reply while that passes
`checkup`      what `sfactl doctor` asks
`journal`      what calls under way have used, for the daemon if this process is killed
`memory`       the memory that the bodies of requests and what is kept of replies may take
`reading`      what the body of a call says: read by a process of its own, if it is not small
`apis`         the formats of the providers: what a call asks for, what its reply has used
`sse`          server-sent events, piece by piece
`coding`       what a body holds under its content encoding
`estimate`     how many tokens the input of a call has
`trust`        the authorities whose certificates are trusted
`upstreams`    where calls go, and what is changed in their heads
`egress`       the proxy of isolated runs, to hosts that are no model
`egress_rules` which hosts those are
`client_hello` the name of the server in the first message of TLS
`gate`         what the gateway asks of the daemon about each call
`daemon_link`  the gateway's connection to its daemon
`__main__`     starts it
"""
