"""``gpupool up``: the whole pool on this machine, wired together and shown to work."""
