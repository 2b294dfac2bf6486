"""Commands of the operator and of submitters, started at events.

`reports`      what a hook is given; counts those that end, and tells of those that fail
`fair_queue`   bounded, and fair to users, trees and severities
`event_hooks`  `[[hooks]]`: which events start which hook, whether its program may be executed, and
               what was not finished
`end_hooks`    `--on-end`: one command for each run that asked for it
"""
