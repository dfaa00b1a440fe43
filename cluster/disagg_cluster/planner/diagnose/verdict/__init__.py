"""What a diagnosis says, and in which words."""
