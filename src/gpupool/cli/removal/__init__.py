"""Removing a state folder: what is one, what goes, what stays."""
