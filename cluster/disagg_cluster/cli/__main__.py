"""`python -m disagg_cluster.cli`: the command without an installed script."""

from disagg_cluster.cli.main import main

main()
