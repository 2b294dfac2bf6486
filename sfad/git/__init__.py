"""git, as the daemon's helpers and `sfactl` execute it.

`commands`  how git is invoked
`obeyed`    what git executes for a person's config and hooks
"""
