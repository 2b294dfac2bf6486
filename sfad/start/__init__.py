"""What is decided about a request to start a run, before the core is asked.

client's `spawn` ──┐
session's tool ────┤   ┌─────────┐ steps, checks ┌───────┐ the core   ┌────────┐
lost run, ─────────┼──▶│ prepare │──────────────▶│ start │──admits───▶│ launch │──▶ execve
continued          │   └─────────┘               └───────┘ on disk    └────────┘
placed run ────────┘ (the core has admitted it already: prepared, it is launched)

What was asked is the order: the client's message, which nothing changes. What is decided is
`Prepared`, which begins as what was asked. `daemon.loop.starting` is the way, with the order of
the steps; those of a feature stand with it.

`prepared`     what the daemon reads around a request: who asks, from which run, with which rights;
               and what is decided
`steps`        the heart's own steps: tools, told time, agents, sessions that are continued, and
               channels
`checks`       what must hold of the result
`asking`       what of it the core decides about
`continuing`   what a request to continue the session of an ended run becomes
`recalling`    what is kept of a request, in order to start its run again
"""
