"""The fleet on one machine: three nodes of Ray, each with its daemon."""
