"""Commands of the operator and of submitters, started at events.

`processes`    what a hook is given; executes commands that are not runs in containments of their
               own, and tells of failures
`fair_queue`   bounded, and fair to users, trees and severities
`event_hooks`  `[[hooks]]`: which events start which hook, whether its program may be executed, and
               what was not finished
`end_hooks`    `--on-end`: one command for each run that asked for it
"""
