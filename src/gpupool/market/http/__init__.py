"""The market's HTTP side."""
