"""Where engines are looked for: processes, pods, lists, Dynamo's files."""
