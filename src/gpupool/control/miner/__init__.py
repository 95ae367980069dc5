"""The miner API: our nodes and placements under the names and rules that `chutes-miner-cli` knows."""
