"""What `gpupool backup`, `restore` and `database move` do: the database and the keys, together or not at all."""
