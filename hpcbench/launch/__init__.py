"""MPI ranks find out who they are, start workers, and agree."""
