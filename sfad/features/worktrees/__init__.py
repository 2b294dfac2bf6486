"""Worktrees of git: runs that work in one of their own, and people who bring their work home
(docs/going-on.md).

`feature`   the declaration
`part`      what of this a daemon does
`deciding`  which run gets a worktree, where, and what its launch needs
`steps`     the programs that make a worktree, executed as the run's user
`private`   what git writes for an isolated run, and how that comes into the repository
`record`    the file beside a worktree
`aside`     commits that a run has put where its worktree and its branch do not have them
`worktrees` how git looks at, makes, compares and removes worktrees
`landing`   how the work in a worktree comes home; only for `sfactl land`

A bare interpreter executes `steps`, and what that imports, which is of the standard library.
`sfactl diff`, `land` and `prune` import the last five.
"""
