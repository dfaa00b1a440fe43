"""The Grafana dashboards as Python, which writes `grafana/dashboards/*.json`.

Only the JSON is shipped. `make dashboards` writes it; a test checks that it matches these builders.
"""
