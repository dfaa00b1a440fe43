"""The part of disagg-node that runs inside an engine: standard library only, a separate folder.

This folder's parent is put on the engine's PYTHONPATH and nothing else of ours is: no module in
here may import `disagg_exporter` or anything an engine's environment might lack.
"""
