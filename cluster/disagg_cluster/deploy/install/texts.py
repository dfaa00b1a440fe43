"""Texts of an installation: the systemd unit of the daemon, and a starter node file."""

from __future__ import annotations

from pathlib import Path

from disagg_cluster.config import NodeConfig
from disagg_cluster.deploy.yaml_text import quoted

_BEYOND_SECONDS = 30
"""Time for the daemon to stop, beyond the longest of its workers."""

_ONLY_FOR_ROOT = """\
ProtectHostname=yes
LockPersonality=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""
"""For other users these imply NoNewPrivileges, which stops nvidia-modprobe, a setuid program."""

_UNIT = """\
# Written by `disagg-node install`. Keep changes of your own in a drop-in
# (systemctl edit disagg-node): later installs leave it alone.
[Unit]
Description=disagg-node: GPU-seconds of LLM inference by phase
Wants=network-online.target
After=network-online.target nvidia-persistenced.service
# Restarted without a limit: the engines need a daemon.
StartLimitIntervalSec=0

[Service]
# The daemon reports readiness, status and watchdog pings; only its main process may do so.
Type=notify
NotifyAccess=main
TimeoutStartSec=300
# A daemon whose loop or supervision hangs is killed and restarted; its engines keep running.
WatchdogSec=60
User={user}
ExecStart={program} start --quiet --config {node_file}
# SIGHUP makes it read its web-config file again.
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
# 2 means an invalid node file: a restart would not help.
RestartPreventExitStatus=2

# The engines are children of the daemon and outlive it. Only the daemon is signalled to stop; the
# next one adopts the engines that it leaves running, by the journal in the runtime directory.
KillMode=process
TimeoutStopSec={stop_seconds}
Delegate=yes
# The daemon gets its own control group, so that it can limit those of its workers (systemd 254).
DelegateSubgroup=daemon
# An engine that runs out of memory is killed alone.
OOMPolicy=continue
RuntimeDirectory=disagg-node
RuntimeDirectoryPreserve=yes
RuntimeDirectoryMode=0700
UMask=0077

# Environment variables for the daemon and its engines, such as HF_TOKEN; the file is optional.
EnvironmentFile=-{environment}
# RDMA pins memory, and a server has many connections.
LimitMEMLOCK=infinity
LimitNOFILE=1048576

# Hardening that engines tolerate. Left out, because they break engines: PrivateDevices and
# DeviceAllow (GPUs), ProtectKernelModules (nvidia-modprobe), MemoryDenyWriteExecute (compiled
# kernels), PrivateTmp (an adopted engine would see another /tmp), ProtectHome (models),
# ProtectClock (closes all devices), ProtectKernelLogs (Xid errors are read there).
ProtectSystem=full
{hardening}
[Install]
WantedBy=multi-user.target
"""


def unit_text(
    config: NodeConfig, program: Path, node_file: Path, environment: Path, user: str
) -> str:
    """Return the unit that runs `program` on a node file; `config` is that file's content."""
    return _UNIT.format(
        user=user,
        program=_word(program),
        node_file=_word(node_file),
        environment=str(environment).replace("%", "%%"),
        hardening=_ONLY_FOR_ROOT if user == "root" else "",
        stop_seconds=_stop_seconds(config),
    )


def _stop_seconds(config: NodeConfig) -> int:
    if config.on_sigterm == "leave":
        return _BEYOND_SECONDS
    deadlines = [worker.deadlines for worker in config.workers]
    if config.router is not None:
        deadlines.append(config.router.deadlines)
    longest = max((d.drain_seconds + d.stop_seconds for d in deadlines), default=0.0)
    # The router is stopped before the engines.
    return round(longest * (1 if config.router is None else 2)) + _BEYOND_SECONDS


def _word(path: Path) -> str:
    """Return a path as one word of a command: systemd expands % and $, and splits at spaces."""
    text = str(path).replace("%", "%%").replace("$", "$$")
    if not any(char in text for char in " \t\"'\\;"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_STARTER = """\
# The node file. `disagg-node config check` reports mistakes in it; docs/node-file.md explains its
# keys.
node: {node}
{cluster}run_dir: /run/disagg-node
on_sigterm: leave # engines keep serving while the daemon is upgraded or restarted

# Engines that something else starts on this node are found and measured (docs/attach.md).
attach: {{}}

# Engines that the daemon starts itself:
# workers:
#   - name: prefill-0
#     role: prefill
#     gpus: [0, 1, 2, 3]
#     model: openai/gpt-oss-120b
#     port: 8100
#     python: /srv/vllm/bin/python
#     kv_transfer: {{connector: NixlConnector, side_channel_port: 5600}}
#   - name: decode-0
#     role: decode
#     gpus: [4, 5, 6, 7]
#     model: openai/gpt-oss-120b
#     port: 8200
#     python: /srv/vllm/bin/python
#     kv_transfer: {{connector: NixlConnector, side_channel_port: 5610}}
"""


def starter_text(node: str, cluster: str = "") -> str:
    """Return the text of a node file for a node of this name."""
    named = f"cluster: {quoted(cluster)}\n" if cluster else ""
    return _STARTER.format(node=quoted(node), cluster=named)
