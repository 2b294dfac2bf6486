"""What outlives this process: the journal of live runs, their adoption, the handover, budgets, maintenance."""
