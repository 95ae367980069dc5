"""The recompute server: HTTP in front, one engine a thread behind it."""
