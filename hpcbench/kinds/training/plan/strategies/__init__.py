"""Our training strategies, one a module: each ``SPEC`` tells what it is and how it is planned."""
