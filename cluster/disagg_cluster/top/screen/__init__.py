"""The view as lines of styled text: layout at any terminal size, and keys."""
