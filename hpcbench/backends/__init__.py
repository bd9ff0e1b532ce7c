"""Communication backends: can one run here, or why not; devices: how work on them completes."""
