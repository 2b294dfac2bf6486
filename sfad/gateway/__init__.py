"""The gateway: a process of its own between the agents and the model's API. It asks the daemon
before each call.

`proxy`           the connections of agents
`http_connection` one connection: requests in, replies out
`exchange`        one request: whose it is, whether its tree can pay for it, and the reply as it
                  comes; what `sfactl doctor` asks
`call_tally`      what a call has used, read from its reply while that passes, within bounds of
                  memory
`call_journal`    what calls under way have used, for the daemon if this process is killed
`bodies`          has the bodies of calls read: by a process of its own, if one is not small
`reading`         that process: what the body of a call says, and the body with a lower maximum
                  output
`apis`            the formats of the providers: what a call asks for, what its reply has used
`usage_chunks`    takes out of a stream what its client has not asked for
`coding`          what a body holds under its content encoding
`subscription_reading`    what calls and their replies tell of a subscription's windows
`local_models`    which upstreams serve a local model, which is free
`estimate`        how many tokens the input of a call has
`upstreams`       where calls go, which certificates are trusted, and what is changed in heads
`egress`          the proxy of isolated runs, to hosts that are no model
`egress_rules`    which hosts those are
`daemon_link`     the gateway's connection to its daemon, and what it asks about each call
`__main__`        starts it
"""
