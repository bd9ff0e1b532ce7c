"""Answers from the results of several runs, or of one: pure functions of results."""
