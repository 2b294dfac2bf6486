"""What operators can watch.

`counts`      what has happened since the start, counted
`exposition`  metrics as text, by prometheus_client; imported when they are asked for
`log`         the JSON log
`metrics`     each metric: its name, what it is, its labels
"""
