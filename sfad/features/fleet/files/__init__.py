"""Files that are sent with runs, and brought back (docs/fleet.md#files).

`packing` directories are packed, unpacked and compared; also for `sfactl spawn --ship` and `fetch`
`steps`   the programs that do that on a node, executed as the run's user
`kept`    archives and copies on the disk of a node
`sending` archives on their way, the copy in which a run works, and what it has changed there
"""
