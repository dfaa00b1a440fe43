"""A stand-in for a node file's vLLM interpreter: it accepts vLLM's command, and simulates.

A program, run as `PYTHON -m vllm.entrypoints.openai.api_server …`; options without a counterpart in
a stand-in engine, such as the batch size, are checked to be present and dropped.
"""

import argparse
import json
import os
import sys
from pathlib import Path

GPUS_VARIABLE = "STANDIN_GPUS"
"""Its GPUs: simulated ones are no CUDA devices that could be made visible to it."""
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def main() -> None:
    """Become a stand-in engine of the role, address and GPUs that vLLM would have."""
    if sys.argv[1] == "-c":  # asked whether it has vLLM
        return
    assert sys.argv[1:3] == ["-m", "vllm.entrypoints.openai.api_server"], sys.argv
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("--model", "--served-model-name", "--host", "--port", "--kv-transfer-config"):
        parser.add_argument(option, required=True)
    parser.add_argument("--tensor-parallel-size", type=int, required=True)
    options, _rest = parser.parse_known_args(sys.argv[3:])
    gpus = os.environ[GPUS_VARIABLE]
    if len(gpus.split(",")) != options.tensor_parallel_size:
        sys.exit(f"{options.tensor_parallel_size} ranks on GPUs {gpus}")
    transfer = json.loads(options.kv_transfer_config)
    if os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST") != options.host:
        sys.exit("peers would not find its KV")
    sys.stdout.write(f"kv: {transfer} on {os.environ['VLLM_NIXL_SIDE_CHANNEL_PORT']}\n")
    sys.stdout.flush()
    argv = [sys.executable, "-m", "disagg_cluster.demo.standin", "--name", options.port]
    argv += ["--role", ROLES[transfer["kv_role"]], "--model", options.served_model_name]
    argv += ["--host", options.host, "--port", options.port, "--gpus", gpus]
    argv += ["--sim-dir", str(Path(os.environ["DISAGG_STEPS_SOCKET"]).parent / "sim")]
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main()
