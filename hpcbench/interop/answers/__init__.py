"""Answers that need a job's recorded calls, or are files for other libraries."""
