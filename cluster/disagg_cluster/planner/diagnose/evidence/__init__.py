"""Evidence from exported series: observations and changes of each engine in a window."""
