"""The MCP server `sfactl mcp`, which offers sessions to a language model (docs/mcp.md).

`server`        answers the client of an agent program: tools, progress, questions, announcements
`tools`         the tools with their parameters, as the model sees them
`registration`  how each agent program is told of the server, for good or for one run

Only `server` imports the SDK (the extra `mcp`), which takes half a second. Tool calls run in threads, because `sfactl.sessions` is
synchronous; a session belongs to the daemon, so neither the end of a thread nor of this process ends one.
"""
