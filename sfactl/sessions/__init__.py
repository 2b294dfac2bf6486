"""`sfactl session` and `sfactl mcp`: runs that a model asks for.

`options`  the options of `session delegate` and `session spawn`
`asking`   what the verbs and the MCP server do
"""
