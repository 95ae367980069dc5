"""The store adapter: the pool's state in a SQL database (SQLite now), behind the port `fleet.ports.store`.

`store.open` is the way in; importing this package alone loads nothing heavy.
"""
