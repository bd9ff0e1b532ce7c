"""Whether a job, as it was started here, can be measured well: ``hpcbench validate``.

``validate.py`` runs it, ``gather.py`` asks each rank, each other file judges one subject.
"""
