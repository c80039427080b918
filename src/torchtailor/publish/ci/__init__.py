"""Workflows for continuous integration: a selector built over a matrix of runners, proven and published."""
