"""Local web pages: a WebShop store, and recorded episodes."""
