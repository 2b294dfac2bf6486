"""The gateway: agents' model calls pass through it, and so do other hosts that a run may reach
(docs/gateway.md). Each run is led there unless it or the config says otherwise.

The daemon starts it as a process of its own, for each user who needs one. It asks the daemon before
a call. The half in the core decides about that: it reserves, lowers, holds or refuses.

`feature`    the declaration
`messages`   what a gateway asks and tells, beside `protocol.requests.gateway`
`calls`      model calls: admitted, lowered to what fits, held or refused; pure
`call_rules` rules beside money: models, rates, repeated tool calls; pure
`part`       its part in a daemon
`verbs`      answers gateways
`routing`    leads commands through a gateway, or around it: steps of `Starting.prepare`
`gateways`   the gateways of all users, and which of them leads where
`process`    starts and watches a gateway
`lost`       what calls have used whose gateway, or whose run, is not there any more
`connection_watch` model calls that a run makes itself, past the gateways
`program`    a gateway's own process
"""
