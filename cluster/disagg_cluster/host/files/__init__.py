"""Files: private, bounded, written whole, shipped with the package."""
