"""The communication of a real job: recorded, read from other programs' files, and matched."""
