"""Whether a job, as it was started here, can be measured well: ``hpcbench validate``.

``validate.py`` runs it, ``gather.py`` asks each rank, every other file judges one subject: pure
functions of what the ranks report.
"""
