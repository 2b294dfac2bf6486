"""What is known of runs.

`catalogue`    the one answer to what is known of a run: live, ended a short while ago, or in the
               ledger
`live`         a live run as the shell knows it, beside the core's `Run`: what was decided about it,
               its stdin; who waits for it
`showing`      how a live run is shown, to clients and in its row of the ledger
"""
