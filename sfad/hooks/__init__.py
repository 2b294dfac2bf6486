"""Commands of the operator and of submitters, started at events.

`processes`    executes a hook in a containment of its own, within a time, and tells of failures
`event_hooks`  `[[hooks]]`: which events start which hook, whether its program may be executed, and what was not finished
`end_hooks`    `--on-end`: one command for each run that asked for it; a bounded queue, fair to trees and severities
"""
