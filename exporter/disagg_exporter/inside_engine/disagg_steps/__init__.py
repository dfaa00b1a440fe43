"""The part of disagg-node that runs inside an engine. Standard library only, one folder, alone.

This folder's parent is put on the engine's PYTHONPATH and nothing else of ours is: no module in
here may import `disagg_exporter` or anything an engine's environment might lack.
"""
