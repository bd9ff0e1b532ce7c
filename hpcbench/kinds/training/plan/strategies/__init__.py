"""Our training strategies: ``SPECS`` of each module are the meaning and the plan of each."""
