"""The half in the core, which is pure: runs that execute on other nodes, and runs that other nodes
have granted.

`elsewhere` what the core asks
`giving`    runs on other nodes, with their share of the tree
`taking`    runs of other nodes here, with their lease
`heard`     what is told of both
"""
