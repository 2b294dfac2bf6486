"""The pure core: what happened goes in, what to do comes out.

`Machine.handle(event)` returns commands. Events are named in the past tense and carry the time they happened at, so
nothing here reads a clock; commands are imperatives that the shell applies in order. No I/O, no trio, no process: the
same machine runs thirty thousand simulated runs in a test.

`events`, `commands`  the two vocabularies
`candidate` the run that a request describes, its values checked
`guard`    ordered rules: admit or refuse
`access`   who may do what
`tree`     ancestry and budgets
`run`      one run and its transition table
`stop`     the stop ladder
`retry`    back-off between attempts
`limits`   where a run's limits come from, and what exceeds them
`account`  what a run has used and holds
`budgets`  money of users and teams
`money`    nano-dollars, and their conversion
`quotas`   rates and the queue of waiting trees
`naming`   the loop identity of a command
`ids`      run numbers as text
`machine`  composes the above
"""
