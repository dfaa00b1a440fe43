"""Files: private, bounded, atomically written, shipped with the package."""
