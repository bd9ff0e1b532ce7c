"""Commands for files, jobs and readers outside hpcbench."""
