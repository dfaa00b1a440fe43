{{- define "disagg-node.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimAll "-" }}
{{- end }}

{{- /* Short enough for a group's name behind it: an object's name may have 63 letters. A release may
       have dots in its name, and a Service may not. */}}
{{- define "disagg-node.fullname" -}}
{{- $name := include "disagg-node.name" . }}
{{- $release := .Release.Name | replace "." "-" }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 32 | trimAll "-" }}
{{- else if contains $name $release }}
{{- $release | trunc 32 | trimAll "-" }}
{{- else }}
{{- printf "%s-%s" $release $name | trunc 32 | trimAll "-" }}
{{- end }}
{{- end }}

{{- define "disagg-node.selectorLabels" -}}
app.kubernetes.io/name: {{ include "disagg-node.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "disagg-node.labels" -}}
{{ include "disagg-node.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "disagg-node.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "disagg-node.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- /* The settings of the image where a part has its own, which take precedence; the common digest is
       that of the common repository and tag. Takes (root, the part's settings). */}}
{{- define "disagg-node.ownImage" -}}
{{- $own := deepCopy (last . | default dict) }}
{{- if or $own.repository $own.tag }}
{{- $own = merge $own (dict "digest" "") }}
{{- end }}
{{- mergeOverwrite (deepCopy (first .).Values.image) $own | toYaml }}
{{- end }}

{{- define "disagg-node.image" -}}
{{- $tag := .Chart.AppVersion }}
{{- if eq .Values.profile "launch" }}
{{- $tag = printf "%s-vllm" $tag }}
{{- end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default $tag) }}
{{- end }}
{{- end }}

{{- /* Says "true" if the pods are to ask the API server. */}}
{{- define "disagg-node.usesApi" -}}
{{- if and (eq .Values.profile "attach") .Values.attach.api.enabled }}true{{ end }}
{{- end }}

{{- /* Says "true" if workers can be controlled over gRPC on a port. */}}
{{- define "disagg-node.grpc" -}}
{{- if and (eq .Values.profile "launch") .Values.launch.grpc.enabled }}true{{ end }}
{{- end }}

{{- /* A node file: what the user wrote, and what the chart knows better. Takes (root, file). */}}
{{- define "disagg-node.nodeFile" -}}
{{- $root := first . }}
{{- $ours := dict "run_dir" "/run/disagg-node" "listen" (dict "metrics" (printf ":%v" $root.Values.port)) }}
{{- if $root.Values.cluster }}
{{- $_ := set $ours "cluster" $root.Values.cluster }}
{{- end }}
{{- $file := mergeOverwrite (deepCopy (last . | default dict)) $ours }}
{{- range $page, $url := $root.Values.links }}
{{- if $url }}
{{- $file = merge $file (dict "links" (dict $page $url)) }}
{{- end }}
{{- end }}
{{- if eq $root.Values.profile "attach" }}
{{- /* Without the rights to look somewhere it is not looked there. */}}
{{- $looks := dict }}
{{- if not $root.Values.attach.hostPID }}
{{- $_ := set $looks "processes" false }}
{{- end }}
{{- if not (or $root.Values.attach.api.enabled $root.Values.attach.kubelet.enabled) }}
{{- $_ := set $looks "kubernetes" "never" }}
{{- end }}
{{- $file = merge $file (dict "attach" $looks) }}
{{- with $root.Values.attach.dcgm }}
{{- if .url }}
{{- $file = mergeOverwrite $file (dict "dcgm" (dict "url" .url "interval_seconds" .intervalSeconds)) }}
{{- end }}
{{- end }}
{{- if $root.Values.attach.hpcJobs }}
{{- $file = mergeOverwrite $file (dict "bridges" (dict "hpc_job_dir" "/var/lib/hpc-jobs")) }}
{{- end }}
{{- else }}
{{- with $root.Values.launch.grpc }}
{{- if .enabled }}
{{- $grpc := dict "listen" (printf ":%v" .port) "web_config" "/etc/disagg-control/control.yaml" }}
{{- if .tokenSecret }}
{{- $_ := set $grpc "token_file" "/etc/disagg-control/token" }}
{{- end }}
{{- $file = mergeOverwrite $file (dict "control" (dict "grpc" $grpc)) }}
{{- end }}
{{- end }}
{{- range $worker := $file.workers }}
{{- $_ := merge $worker (dict "python" $root.Values.launch.python) }}
{{- end }}
{{- /* An empty one is a router with the defaults. */}}
{{- if kindIs "map" $file.router }}
{{- $_ := merge $file.router (dict "python" $root.Values.launch.routerPython) }}
{{- end }}
{{- end }}
{{- $file | toYaml }}
{{- end }}

{{- define "disagg-node.webSecret" -}}
{{- if .Values.web.existingSecret }}
{{- .Values.web.existingSecret }}
{{- else if or .Values.web.tlsSecret .Values.web.basicAuthUsers }}
{{- include "disagg-node.fullname" . }}-web
{{- end }}
{{- end }}

{{- define "disagg-node.scheme" -}}
{{- .Values.web.scheme | default (ternary "https" "http" (not (empty .Values.web.tlsSecret))) }}
{{- end }}

{{- /* Says "true" if objects of an API are wanted: true, false, or auto, if the cluster has it.
       Takes (root, wish, group and version). */}}
{{- define "disagg-node.wanted" -}}
{{- $wish := toString (index . 1) }}
{{- if eq $wish "true" }}true
{{- else if and (eq $wish "auto") ((first .).Capabilities.APIVersions.Has (last .)) }}true
{{- end }}
{{- end }}

{{- /* How to scrape a page, for both kinds of monitors. */}}
{{- define "disagg-node.endpoint" -}}
{{ include "disagg-node.request" . }}
relabelings:
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
  {{- with .Values.cluster }}
  - targetLabel: cluster
    {{- /* Prometheus expands $1 in it; $$ is a dollar. */}}
    replacement: {{ . | replace "$" "$$" | quote }}
  {{- end }}
  {{- with .Values.scrape.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.scrape.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* How a page is asked for. */}}
{{- define "disagg-node.request" -}}
port: metrics
path: /metrics
scheme: {{ include "disagg-node.scheme" . }}
interval: {{ .Values.scrape.interval }}
scrapeTimeout: {{ .Values.scrape.timeout }}
{{- with .Values.scrape.tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.scrape.basicAuth }}
basicAuth:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The planner is no node: another name, so that nothing that chooses nodes chooses it. */}}
{{- define "disagg-node.plannerSelector" -}}
app.kubernetes.io/name: disagg-planner
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "disagg-node.plannerLabels" -}}
{{ include "disagg-node.plannerSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "disagg-node.plannerEndpoint" -}}
{{ include "disagg-node.request" . }}
{{- /* Its verdicts name the nodes of engines, or none: those of its own pod must not stand in. */}}
honorLabels: true
{{- if .Values.cluster }}
relabelings:
  - targetLabel: cluster
    replacement: {{ .Values.cluster | replace "$" "$$" | quote }}
{{- end }}
{{- end }}

{{- /* The label `le` of a bound in seconds, which may be given as a number: 1 is 1.0 there. */}}
{{- define "disagg-node.bucket" -}}
{{- $text := toString . }}
{{- ternary $text (printf "%s.0" $text) (contains "." $text) }}
{{- end }}

{{- /* A duration such as 1m30s in milliseconds. */}}
{{- define "disagg-node.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 }}
{{- $sum := 0 }}
{{- range $part := regexFindAll "[0-9]+(ms|[smh])" . -1 }}
{{- $sum = add $sum (mul (regexFind "[0-9]+" $part | int64) (get $units (regexFind "[a-z]+" $part))) }}
{{- end }}
{{- $sum }}
{{- end }}
