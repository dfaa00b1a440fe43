"""Per-device accounting: GPU-seconds, energy, activity, carry-over, removed devices."""
