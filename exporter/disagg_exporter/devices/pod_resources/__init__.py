"""Which pod holds which GPU, from the kubelet's pod-resources API."""
