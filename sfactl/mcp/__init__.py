"""The MCP server `sfactl mcp`, which offers sessions to a language model (docs/sessions.md).

    client ─ lines ─▶ json_rpc ─▶ server ─┬─▶ eras
                                             └─▶ session_tools ─▶ sfactl.sessions.asking ─▶ sfad

`server`         answers the client of an agent program, and announces the ends of sessions to it
`json_rpc`       the client's lines; requests and answers, in both directions
`eras`           what requests and results are like in the two eras of the protocol
`tools`          the tools with their parameters, as the model sees them
`session_tools`  carries out the calls of tools, and tells the model of them
`approving`      asks a person, for the program or its hook, for a call of a tool
`codex_hooks`    asks Codex whether it trusts the hook
`registration`   how each agent program is told of the server, for good or for one run

Each agent program starts a server whether or not its model will use a tool, so it starts fast: it
imports `session_tools` when a tool is called, and `registration` not at all. One thread reads and
writes. Each request for the daemon has a thread of its own, because `sfactl.sessions.asking` is
synchronous.
"""
