"""The view as lines of styled text: what stands where, at any size, with which keys."""
