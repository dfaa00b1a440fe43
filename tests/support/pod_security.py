"""The pod security standards of Kubernetes, as far as they concern pods like ours.

From https://kubernetes.io/docs/concepts/security/pod-security-standards/ (v1.33).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from support.chart import containers

_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_RESTRICTED_VOLUMES = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
_BASELINE_CAPABILITIES = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
_BASELINE_SELINUX = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SECCOMP = ("RuntimeDefault", "Localhost")


def level(pod: Mapping[str, Any]) -> str:
    """Return the strictest standard that admits a pod: restricted, baseline or privileged."""
    if any(_beyond_baseline(pod)):
        return "privileged"
    return "baseline" if any(_beyond_restricted(pod)) else "restricted"


def _beyond_baseline(pod: Mapping[str, Any]) -> Iterator[bool]:
    yield any(pod.get(key, False) for key in _HOST_NAMESPACES)
    yield any("hostPath" in volume for volume in pod["volumes"])
    yield pod["securityContext"].get("seLinuxOptions", {}).get("type", "") not in _BASELINE_SELINUX
    for container in containers(pod):
        context = container["securityContext"]
        yield context.get("privileged", False)
        added = context["capabilities"].get("add", ())
        yield not _BASELINE_CAPABILITIES.issuperset(added)
        yield any("hostPort" in port for port in container.get("ports", ()))


def _beyond_restricted(pod: Mapping[str, Any]) -> Iterator[bool]:
    of_pod = pod["securityContext"]
    yield any(not _RESTRICTED_VOLUMES.intersection(volume) for volume in pod["volumes"])
    for container in containers(pod):
        context = {**of_pod, **container["securityContext"]}
        yield context.get("allowPrivilegeEscalation", True)
        yield not context.get("runAsNonRoot", False)
        yield context.get("runAsUser") == 0
        yield context.get("seccompProfile", {}).get("type") not in _SECCOMP
        yield context["capabilities"].get("drop") != ["ALL"]
        yield not {"NET_BIND_SERVICE"}.issuperset(context["capabilities"].get("add", ()))
