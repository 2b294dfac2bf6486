"""The client's half of worktrees, and of directories that are sent with runs.

`landing`   the work of ended runs in worktrees: what is there, and how it lands
`pruning`   removes worktrees of ended runs
`pruned`    what that has done
`shipping`  directories that are sent with runs, and changes that are brought back
"""
