"""The recompute proxy: one address for all harvesters, in front of Gigahorse servers and of our own."""
