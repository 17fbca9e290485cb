"""WebShop: text-based shopping in a simulated store. See docs/webshop.md."""
