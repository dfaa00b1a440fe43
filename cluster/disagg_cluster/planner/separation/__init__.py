"""What separating prefill from decode would bring, or merging what is separate."""
