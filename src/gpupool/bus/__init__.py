"""Buses: how controls on one database hear of each other's commits at once."""
