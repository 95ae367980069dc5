"""One module a step; `store.schema` lists their names in order."""
