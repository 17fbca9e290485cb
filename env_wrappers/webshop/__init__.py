"""WebShop: shopping in a simulated store, by text. See docs/webshop.md."""
