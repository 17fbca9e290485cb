"""Pages for a browser on this machine: a WebShop store, and recorded episodes."""
