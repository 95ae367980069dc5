"""Backups: the whole state in one file that any database takes back, of this version or of a later one.

A backup is made while the pool works, from one snapshot. It is plain enough to be read without gpupool: a ZIP with one
file of JSON lines a table. It holds the pool's keys too, since sealed variables are lost without theirs; so it is as
secret as they are.
"""
