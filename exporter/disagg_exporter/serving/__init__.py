"""What users' requests met, by model: from engines, from routers and frontends, from both pools."""
