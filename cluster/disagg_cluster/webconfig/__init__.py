"""The Prometheus web-config file: TLS, passwords and headers of the metrics port.

The format is exporter-toolkit's (docs/web-configuration.md of prometheus/exporter-toolkit). What
Python's TLS cannot do is refused, never left out quietly.
"""

from disagg_cluster.webconfig.reading import WebFiles, read
from disagg_cluster.webconfig.tls import access_of, load
from disagg_cluster.webconfig.watch import WebConfigWatch

__all__ = ["WebConfigWatch", "WebFiles", "access_of", "load", "read"]
