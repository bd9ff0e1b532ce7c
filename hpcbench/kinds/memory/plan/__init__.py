"""Cases that measure what trainings hold."""
