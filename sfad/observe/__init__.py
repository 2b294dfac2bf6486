"""What operators can watch.

`counts`      what has happened since the start, counted
`exposition`  metrics as text, by prometheus_client; imported when they are asked for
`limit_log`   each breach of a limit, with its run
`line_file`   lines to a file or descriptor, without waiting
`log`         the JSON log
`metrics`     each metric: its name, what it is, its labels
"""
