"""The local-process runtime: a workload is a process group of its own, with private folders and a run record.

Nothing here ties a workload's life to the agent's: output goes to a file, and the record names pid and start time,
so that a later agent adopts what still runs, and `cleanup` ends it when no agent is left. Nothing is imported here: who
only ends or reads records does not pay for the runtime.
"""
