"""Commands of the operator and of submitters, started at events (docs/hooks.md).

`feature`     the declaration
`messages`    the request of `sfactl hooks try`
`programs`    whether the program of a hook may be executed
`saved`       what the spool has of hooks: how far each has come, and commands of `--on-end`
`reports`     what a hook is given; counts those that end, and tells of those that fail
`fair_queue`  bounded, and fair to users, trees and severities
`event_hooks` `[[hooks]]`: which events start which hook, and what was not finished
`end_hooks`   `--on-end`: one command for each run that asked for it
`part`        what of this a daemon does
"""
