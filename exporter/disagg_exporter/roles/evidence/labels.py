"""Role claims of a pod's labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.role_names import (
    definite_claim,
    name_claims,
    plain,
    role_word,
    service_name,
    word_claims,
)
from disagg_exporter.roles.evidence.types import (
    Claim,
    Confidence,
    Source,
    conditional_decode,
    note,
    stated,
    weak,
)

EXPLICIT_LABEL = "disagg-node/role"
LLM_D_ROLE = "llm-d.ai/role"
COMPONENT = "app.kubernetes.io/component"
_KSERVE = "llminferenceservice-"
_DYNAMO = "nvidia.com/dynamo-"
DYNAMO_WORKER_TYPE = "dynamo worker_type"
"""The worker type in a Dynamo worker's model card, passed among the labels; no pod has this key."""
# The guides of llm-d in which prefill and decode are separate.
_SPLIT_GUIDES = ("pd-disaggregation", "wide-ep")
_NOT_PROOF = "aggregated pods carry it too"
_AIBRIX = (Source.AIBRIX, Confidence.HIGH)
_GENERIC = (Source.ROLE_LABEL, Confidence.MEDIUM)

# The label's owner, and the confidence in its role words; `decode` is unambiguous in all of these.
_DIRECT = (
    ("disaggregatedset.x-k8s.io/role", Source.DISAGGREGATED_SET, Confidence.HIGH),
    ("modelserving.volcano.sh/role", Source.KTHENA, Confidence.HIGH),
    ("modelserving.volcano.sh/rolename", Source.KTHENA, Confidence.HIGH),
    ("rolebasedgroup.workloads.x-k8s.io/role", Source.ROLE_LABEL, Confidence.HIGH),
    ("rbg.workloads.x-k8s.io/role-name", Source.ROLE_LABEL, Confidence.HIGH),
    ("leaderworkerset.sigs.k8s.io/role", Source.ROLE_LABEL, Confidence.MEDIUM),
    (COMPONENT, Source.ROLE_LABEL, Confidence.MEDIUM),
)
# Labels of any owner whose last word says that they are about roles.
_ROLE_KEYS = frozenset(
    (
        *("role", "component", "role-name", "rolename", "pd-role", "disagg-role", "engine-role"),
        *("inference-role", "worker-role", "worker-type", "disaggregation-role", "task-spec"),
    )
)
_NAME_KEYS = (
    *("app", "app.kubernetes.io/name", "app.kubernetes.io/instance", "k8s-app", "name"),
    *("statefulset.kubernetes.io/pod-name", "leaderworkerset.sigs.k8s.io/name", "job-name"),
    *("grove.io/podclique", "environment", "inferencepool", "release", "pod", "service"),
)
MAX_LABELS = 4096


def label_claims(labels: Mapping[str, str]) -> Iterator[Claim]:
    """Yield the claims of the labels; labels of unknown meaning are ignored."""
    if EXPLICIT_LABEL in labels:
        explicit = role_word(labels[EXPLICIT_LABEL])
        yield definite_claim(Source.EXPLICIT, EXPLICIT_LABEL, explicit, Confidence.CERTAIN)
    yield from _llm_d(labels)
    yield from _kserve(labels)
    yield from _dynamo(labels)
    yield from _aibrix(labels)
    yield from _production_stack(labels)
    known = {LLM_D_ROLE, EXPLICIT_LABEL, "role-name"}
    for key, source, sure in _DIRECT:
        known.add(key)
        if key in labels:
            yield from _role_or_non_engine(source, key, labels[key], sure)
    for key in sorted(labels.keys() - known)[:MAX_LABELS]:
        last = plain(key.rsplit("/", 1)[-1])
        if key.startswith(_DYNAMO):
            continue
        if last in _ROLE_KEYS or last.endswith(("-role", ".role")):
            marker = f"label {last}" if last in _ROLE_KEYS else "label …-role"
            yield from _role_or_non_engine(
                Source.ROLE_LABEL, marker, labels[key], Confidence.MEDIUM
            )
    for key in _NAME_KEYS:
        yield from name_claims(f"label {key}", labels.get(key, ""))


def _role_or_non_engine(
    source: Source, marker: str, value: str, sure: Confidence
) -> Iterator[Claim]:
    claims = word_claims(source, marker, value, sure)
    yield from claims
    for found in () if claims else name_claims(marker, value):
        # A role that people named freely: `prefill-large`, `vllm-router`.
        if sure is Confidence.HIGH:
            yield stated(source, marker, found.value, found.says, Confidence.MEDIUM)
        else:
            yield found


def _llm_d(labels: Mapping[str, str]) -> Iterator[Claim]:
    recognised = role_word(labels.get(LLM_D_ROLE, ""))
    if recognised is None:
        return
    word, role = recognised
    if role is not Role.DECODE:
        sure = Confidence.MEDIUM if word in ("both", "aggregate") else Confidence.HIGH
        yield stated(Source.LLM_D, LLM_D_ROLE, word, role, sure)
        return
    # KServe writes `both` here where the service has no prefill part, but not on its workers.
    component = plain(labels.get(COMPONENT, ""))
    if component in (f"{_KSERVE}workload", f"{_KSERVE}workload-leader"):
        marker = f"{LLM_D_ROLE} beside {component}"
        yield stated(Source.KSERVE, marker, word, role, Confidence.MEDIUM)
    elif any(guide in labels.get("llm-d.ai/guide", "") for guide in _SPLIT_GUIDES):
        marker = f"{LLM_D_ROLE} beside llm-d.ai/guide"
        yield stated(Source.LLM_D, marker, word, role, Confidence.MEDIUM)
    else:
        yield conditional_decode(Source.LLM_D, LLM_D_ROLE, word, _NOT_PROOF)


def _kserve(labels: Mapping[str, str]) -> Iterator[Claim]:
    component = plain(labels.get(COMPONENT, ""))
    if not component.startswith(_KSERVE):
        return
    part = component.removeprefix(_KSERVE)
    if part in ("workload-prefill", "workload-leader-prefill", "workload-worker-prefill"):
        yield stated(Source.KSERVE, COMPONENT, part, Role.PREFILL, Confidence.HIGH)
    elif part in ("workload", "workload-leader", "workload-worker"):
        yield note(Source.KSERVE, COMPONENT, part, "decode, or both where there is no prefill")
    elif part.startswith(("router", "scheduler")):
        yield stated(Source.KSERVE, COMPONENT, "router", None, Confidence.HIGH)


def _dynamo(labels: Mapping[str, str]) -> Iterator[Claim]:
    for key in (f"{_DYNAMO}sub-component-type", DYNAMO_WORKER_TYPE):
        if registered := role_word(labels.get(key, "")):
            yield stated(Source.DYNAMO, key, *registered, Confidence.HIGH)
    key, high = f"{_DYNAMO}component-type", (Confidence.HIGH, Confidence.HIGH)
    kind = labels.get(key, "")
    yield from word_claims(Source.DYNAMO, key, kind, *high)
    if plain(kind) in ("worker", "default"):
        yield note(Source.DYNAMO, key, plain(kind), "in some graphs both halves are workers")
    for key in (f"{_DYNAMO}component", f"{_DYNAMO}service", f"{_DYNAMO}component-name"):
        name = labels.get(key, "")
        found = service_name(name) or role_word(name)
        if found is None or found[1] is Role.MIXED:
            yield from name_claims(key, name, Source.DYNAMO)
        elif found[1] is Role.DECODE:
            # Aggregated graphs have been published with a service called VllmDecodeWorker.
            yield weak(Source.DYNAMO, key, *found, _NOT_PROOF)
        else:
            yield stated(Source.DYNAMO, key, *found, Confidence.MEDIUM)


def _aibrix(labels: Mapping[str, str]) -> Iterator[Claim]:
    if "role-name" not in labels:
        return
    ours = "roleset-name" in labels or any(
        key.startswith(("stormservice.", "orchestration.aibrix.ai/", "model.aibrix.ai/"))
        or key == "storm-service-name"
        for key in labels
    )
    source, sure = _AIBRIX if ours else _GENERIC
    yield from _role_or_non_engine(source, "role-name", labels["role-name"], sure)


def _production_stack(labels: Mapping[str, str]) -> Iterator[Claim]:
    """Yield claims of the label `model`, which its router is configured to read as a role."""
    stack = labels.get(COMPONENT) == "serving-engine" or "helm-release-name" in labels
    for claim in name_claims("label model", labels.get("model", ""), Source.PRODUCTION_STACK):
        if claim.says not in (Role.PREFILL, Role.DECODE):
            continue
        if stack:
            yield stated(claim.source, claim.marker, claim.value, claim.says, Confidence.MEDIUM)
        else:
            yield claim
