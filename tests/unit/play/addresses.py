"""A goal of the small store, and the address of its pages."""

WANTED = {"color": "red", "size": "small"}
ADDRESS = "http://127.0.0.1:3000"
