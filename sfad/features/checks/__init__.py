"""Commands that a run is checked with before it is completed, and those that prepare its new
worktree (docs/checks.md). The core has them executed, as stages (`core.life.stages`).

`feature`   the declaration
`messages`  the request of `sfactl logs --check`
`deciding`  which checks and which setup a run gets
`printed`   what they print: a file for each time that one is executed
`part`      what of this a daemon does
"""
