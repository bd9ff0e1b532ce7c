"""Our training strategies, one a module: each ``SPEC`` holds its meaning and its plan."""
