"""The gain of separating prefill from decode, or of merging separate pools."""
