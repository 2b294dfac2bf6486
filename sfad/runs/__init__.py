"""What is known of runs.

`catalogue`    the one answer to what is known of a run: live, ended a short while ago, or in the
               ledger
`live`         a live run as the shell knows it, beside the core's `Run`, with its stdin; who waits
               for it
`decided`      what was decided about a run before it starts, and the core does not have
`showing`      how a live run is shown, to clients and in its row of the ledger
"""
