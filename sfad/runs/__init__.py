"""What is known of runs.

`call_list`    which calls of models a run has made: under way, not written yet, or in the ledger
`catalogue`    the one answer to what is known of a run: live, ended a short while ago, or in the ledger
`encoded_runs` ended runs as they are sent to clients
`live`         a live run as the shell knows it, beside the core's `Run`
`on_end`       the command of `--on-end`
`raised_alerts` alerts as they are shown
`recalled`     what a run was started with, as `recall` tells it
`showing`      how a live run is shown, to clients and in its row of the ledger
`stdin`        the pipe behind `--stdin`
`subscribers`  clients that wait for the end of a run, or watch its events or calls
`unrecorded_calls` calls of a live run that the ledger's file may not have
"""
