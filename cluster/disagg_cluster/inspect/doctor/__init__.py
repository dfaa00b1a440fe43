"""Problems with a node's measurements, and what would improve them."""
