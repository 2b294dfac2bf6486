"""What is shown of runs, in several verbs.

`table`        tables
`pages`        long lists of runs, page by page
`lines`        the runs that have continued each other's session
`waiting`      what is wrong with a live run, and what waits for a person
`approving`    answers an agent that asks for a call of a tool
`unlike_here`  what a live run has from the kernel that this process has not
`check_output` what the checks of a run have printed
`growing`      the output of a run in pieces, for `top` and the console
`bug_report`   what a bug report says of this machine and of the daemon
`follower`     copies output files, or an agent's text, as they grow
"""
