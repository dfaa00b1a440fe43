"""The account of one device: GPU-seconds, energy, activity, time sharing."""
