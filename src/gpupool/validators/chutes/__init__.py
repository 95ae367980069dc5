"""The Chutes wire protocol from the miner's side; the embedded market speaks it from the other one."""
