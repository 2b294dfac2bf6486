"""Bounds of live runs: what is near one or beyond it, and what follows.

`enforcement`     limits of live runs, runs that wait for a person because of one
`budgets`         trees whose money budgets have run out, and the parts of budgets that
                  other machines have
`limit_requests`  `resume`, `approve`, `deny` and `limit`: more room for a run, or less
`violations`      agent programs that nobody asked for, use that went around the gateway, tools that
                  are not allowed
`call_rules`      which models a run may call and how often, and tool calls that a model repeats
`use_requests`    `report`, `reserve` and `settle`: an agent tells its own use
`calls`           model calls that the gateway asks for
"""
