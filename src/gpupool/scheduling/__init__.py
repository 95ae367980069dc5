"""Scheduling: where a workload goes, and why it goes nowhere.

Pure capability: it looks at a view of the fleet and answers. Whoever asks applies the answer in its own transaction.
"""
