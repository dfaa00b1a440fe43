"""The node daemon: composition of all parts and its main loop."""
