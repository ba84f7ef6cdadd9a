"""Flow 2: one-shot jobs, from `submit` to their row in the ledger."""
