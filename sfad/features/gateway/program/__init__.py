"""The gateway: a process of its own between the agents and the model's API. It asks the daemon
before each call.

`proxy`           the connections of agents
`hangup_watch`    tells when agents hang up
`exchange`        one request: whose it is, whether its tree can pay for it, and the reply as it
                  comes; what `sfactl doctor` asks
`call_tally`      what a call has used, read from its reply while that passes, within bounds of
                  memory
`call_journal`    what calls under way have used, for the daemon if this process is killed
`bodies`          what the bodies of calls say, and the process that reads them
`apis`            the formats of the providers: what a call asks for, what its reply has used
`subscription_reading`    what calls and their replies tell of a subscription's windows
`local_models`    which upstreams serve a local model, which is free
`upstream_connections`    connections to upstreams, kept for later calls
`upstreams`       where calls go, which certificates are trusted, and what is changed in heads
`egress`          the proxy of isolated runs, to hosts that are no model
`egress_rules`    which hosts those are
`daemon_link`     the gateway's connection to its daemon, and what it asks about each call
`__main__`        starts it
"""
