"""Commands of the operator and of submitters, started at events.

`fair_queue`   what waits: bounded, and fair to trees and severities
`processes`    executes a hook in a containment of its own, within a time
`surroundings` what a hook is given: the event as JSON, and few variables
`programs`     whether the program of a hook can and may be executed
`reporting`    tells of failures, in the log and as events
`event_hooks`  `[[hooks]]`: which events start which hook, and what an earlier daemon had not finished
`end_hooks`    `--on-end`: one command for each run that asked for it
"""
