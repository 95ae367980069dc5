"""Telling people: where messages go, through which library or program, and how often it is tried."""
