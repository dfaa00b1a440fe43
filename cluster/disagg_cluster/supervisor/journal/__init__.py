"""The journal of workers, from which a successor adopts them."""
