"""Workloads: which GPU code a program uses, and how the rest is still found when it is needed."""
