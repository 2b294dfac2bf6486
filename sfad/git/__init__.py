"""git, for runs that work in worktrees, and for people who bring their work home.

Also for `sfactl diff`, `land` and `prune`.

`commands`  how git is invoked
`obeyed`    what git executes for a person's config and hooks
`private`   what git writes for an isolated run, and how that comes into the repository
`record`    the file beside a worktree
`worktrees` how git looks at, makes, compares and removes worktrees
`landing`   how the work in a worktree comes home; only for `sfactl land`
"""
