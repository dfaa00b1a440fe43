"""What vLLM, SGLang, TensorRT-LLM and Dynamo call what we read."""
