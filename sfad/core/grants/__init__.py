"""Trees that reach over nodes.

`giving`  runs that execute on another node: their share of the tree, their lease, their end
`taking`  runs that another node has granted
`keeper`  budgets of users and teams over all nodes: allowances, drawn in advance
"""
