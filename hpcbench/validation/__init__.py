"""``hpcbench validate``: whether a job, as it was started here, can be measured well."""
