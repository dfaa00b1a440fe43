"""How a worker's arguments spread its model over more devices than one."""

from __future__ import annotations

from disagg_cluster.config import Worker
from disagg_cluster.launch import sglang_command, vllm_command

_OTHER_SIZES = {"vllm": vllm_command.OTHER_SIZES, "sglang": sglang_command.OTHER_SIZES}
_DATA_SIZES = ("--data-parallel-size", "-dp")
_OF_RANKS = ("--data-parallel", "-dp", "--device-ids")


def other_sizes(worker: Worker) -> dict[str, int]:
    """Return by what its arguments multiply the GPUs it needs, beside the size of a tensor."""
    known, args = _OTHER_SIZES.get(worker.engine, {}), worker.args
    sizes: dict[str, int] = {}
    for argument, following in zip(args, (*args[1:], ""), strict=False):
        kind = known.get(option_name(argument))
        value = argument.partition("=")[2] or following
        if kind and value.isdecimal() and int(value) > 1:
            sizes[kind] = int(value)
    if worker.engine == "sglang" and sglang_command.DATA_WITHIN_TENSOR in map(option_name, args):
        sizes.pop("data", None)
    return sizes


def option_name(argument: str) -> str:
    """The name of an option however vLLM lets it be written: `--a_b=1`, `--a-b.c`."""
    if not argument.startswith("-"):
        return ""
    return argument.partition("=")[0].partition(".")[0].replace("_", "-")


def ranks_of(worker: Worker) -> int:
    """Return how many data-parallel ranks divide a worker's devices among them; 1 if unknown.

    vLLM gives each rank its part of the devices, in order (`get_device_indices` of version 0.32).
    Whoever says more of its ranks than their number may have others elsewhere.
    """
    names = [option_name(argument) for argument in worker.args]
    more = [name for name in names if name.startswith(_OF_RANKS) and name not in _DATA_SIZES]
    return 1 if worker.engine != "vllm" or more else other_sizes(worker).get("data", 1)
