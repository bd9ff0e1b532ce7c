"""One rank's record on disk: crash-safe while running, HDF5 when sealed."""
