"""The Grafana dashboards as Python, which writes `grafana/dashboards/*.json`.

Only the JSON is shipped. `make dashboards` writes it; a test holds it equal to what is said here.
"""
