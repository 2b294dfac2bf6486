"""The gateway: a process of its own between the agents and the model's API. It asks the daemon before each call.

`apis`      the formats of the providers: what a call asks for, what its reply has used
`sse`       server-sent events, piece by piece
`coding`    what a body holds under its content encoding
"""
