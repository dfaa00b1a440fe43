"""What the terminal view shows, as values: made of looks, drawn by `screen`."""
