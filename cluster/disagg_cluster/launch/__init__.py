"""How engines and routers are started: arguments, environment, specification of each worker."""
