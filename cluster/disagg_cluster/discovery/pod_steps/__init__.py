"""Steps of engines in other people's pods: one socket a pod that asked for it, and what it may say.

A pod's identity is the folder its socket lies in, named by the pod's UID and mounted into that pod
alone: the processes behind it are in a pid namespace that we cannot see into.
"""
