"""How a case is measured: timed loop, device clocks, environment. Knows no workload."""
