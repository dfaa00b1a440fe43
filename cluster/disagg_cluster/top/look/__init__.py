"""What metrics pages say at one moment, as typed values."""
