"""How engines and routers are started: arguments, environment, each worker's specification."""
