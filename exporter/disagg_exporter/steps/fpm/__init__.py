"""ForwardPassMetrics: one message per engine step, published by Dynamo's workers and by SGLang.

Needs the extra `fpm` (msgspec and pyzmq); nothing else in this package imports it.
"""
