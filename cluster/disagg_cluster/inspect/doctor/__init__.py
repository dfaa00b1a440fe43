"""What is wrong with the measuring of a node, and what would make it better."""
