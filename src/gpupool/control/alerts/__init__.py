"""Telling people when something dies: what is wrong now, which of it lasts, what is told of it, and how that goes."""
