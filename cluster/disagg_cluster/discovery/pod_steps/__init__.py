"""Steps of engines in other people's pods: one socket per pod that requests it, with limits.

A pod's identity is the folder of its socket, named by the pod's UID and mounted into that pod
alone: the processes behind it are in a pid namespace that is not visible to us.
"""
