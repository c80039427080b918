"""Builds on many machines: a plan as a graph of jobs, a store for their output, and engines that run them."""
