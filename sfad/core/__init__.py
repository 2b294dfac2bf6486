"""The pure core: an event goes in, an outcome comes out. No I/O, no clock, no trio: tests run
thousands of simulated runs in it.

Events are named in the past tense and carry the time they happened at. An outcome has commands,
which the shell applies in order, and the runs whose snapshots it saves before. `machine` routes
each event. A package or module knows only those above it in this list:

`state`       what the core knows: a run, its limits and account, the tree, quotas
`events`      what happened
`commands`    what to do
`barring`     what else may hold calls and roots: a feature
`purses`      what else is charged, and bounds calls and roots: a feature
`elsewhere`   what decides about runs on other machines: a feature
`calling`     what decides about model calls before they are made: a feature
`context`     the live runs and the present outcome, which all components share
`watching`    what features look at after an event
`life`        the steps of a run: accounts, launch, attempts, pause, stop, end
`limits`      what is near a limit or beyond it, and what follows
`admission`   `spawn`, from the guard to the launch; runs of an earlier daemon
`machine`     routes events and timers
"""
