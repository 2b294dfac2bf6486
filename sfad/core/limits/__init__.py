"""Bounds of live runs: what is near one or beyond it, and what follows.

`enforcement`     limits of live runs, runs that wait for a person because of one
`limit_requests`  `resume`, `approve`, `deny` and `limit`: more room for a run, or less
`violations`      agent programs that nobody asked for, use that went around the gateway, tools that
                  are not allowed
`use_requests`    `report`, `reserve` and `settle`: an agent tells its own use
"""
