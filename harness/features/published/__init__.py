"""Published figures of other systems, and where a measured figure stands among them."""
