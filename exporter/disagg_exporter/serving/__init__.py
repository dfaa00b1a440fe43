"""Users' requests by model: from engines, from routers and frontends, from both pools."""
