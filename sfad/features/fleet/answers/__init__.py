"""Answers of a whole fleet, on connections that have asked for them (`OverFleet`): the runs of all
nodes with names that hold everywhere, NODE/ID.

`names`     what runs are called in the fleet, and replies with these names
`sums`      what several nodes have told, as one: lists, summaries, subscriptions
`following` runs and events of all nodes as they change
`remains`   what is left here of runs on other nodes when these have burnt down
`requests`  which nodes a request is for, and what its client is told
"""
