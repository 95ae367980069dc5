"""Getting a stock Chia harvester to ask our pool: the library for its process, and what puts it there and takes it away."""
