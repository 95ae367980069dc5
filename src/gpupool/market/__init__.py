"""The embedded market: the validator's side of the Chutes wire protocol, for pools that need no outside validator."""
