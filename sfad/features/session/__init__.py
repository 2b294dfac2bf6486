"""Sessions: runs of registered agents that a model starts, in its shell or over MCP
(docs/sessions.md). The client's half also is `sfactl/sessions` and `sfactl/mcp`.

A session is a run with terms of its own, which are the heart's: whether one may start, and within
which limits (`core.admission`).

`feature`  the declaration
`messages` its requests
`part`     its part in a daemon
"""
