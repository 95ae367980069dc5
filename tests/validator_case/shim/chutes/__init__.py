"""Stands in for the SDK, of which the validator imports one name."""
