"""Has the daemon of a node make a move, and asks it how far that came."""
