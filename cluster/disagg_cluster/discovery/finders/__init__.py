"""Sources of engines: processes, pods, lists, Dynamo's files."""
