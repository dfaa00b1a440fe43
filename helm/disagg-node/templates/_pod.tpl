{{- /* What the pods of both profiles have in common. Each takes the root. */}}

{{- define "disagg-node.podMetadata" -}}
labels:
  {{- include "disagg-node.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/component: {{ .Values.profile }}
  {{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "disagg-node.placement" -}}
serviceAccountName: {{ include "disagg-node.serviceAccountName" . | quote }}
automountServiceAccountToken: {{ include "disagg-node.usesApi" . | eq "true" }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if .Values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "disagg-node.startArgs" -}}
- start
- --config=/etc/disagg-node/node.yaml
- --quiet
{{- if include "disagg-node.webSecret" . }}
- --web-config=/etc/disagg-web/web-config.yaml
{{- end }}
{{- with .Values.extraArgs }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- /* Where a container is. */}}
{{- define "disagg-node.where" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end }}

{{- /* The variables of a container; the user's take the place of ours of the same name, as a name may
       be there once. Takes (root, ours). */}}
{{- define "disagg-node.env" -}}
{{- $extra := (first .).Values.extraEnv | default list }}
{{- $env := list }}
{{- range concat (include "disagg-node.where" (first .) | fromYamlArray) (last .) }}
{{- $ours := . }}
{{- $taken := false }}
{{- range $extra }}
{{- $taken = or $taken (eq .name $ours.name) }}
{{- end }}
{{- if not $taken }}
{{- $env = append $env $ours }}
{{- end }}
{{- end }}
{{- concat $env $extra | toYaml }}
{{- end }}

{{- /* A ConfigMap is the same on all nodes: what differs is put into a copy of the node file. Takes
       (root, the node file); says nothing where nothing differs. */}}
{{- define "disagg-node.fillIn" -}}
{{- if regexMatch "\\$\\((POD_IP|HOST_IP|NODE_NAME)\\)" (last .) }}
{{- with first . }}
- name: fill-in
  image: {{ include "disagg-node.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    - python
    - -c
    - |
      import os, pathlib, re
      def value(found):
          before, name, after = found.groups(default="")
          ip = os.environ[name]
          # In a URL, and before a port, an IPv6 address is in brackets.
          return before + (f"[{ip}]" if ":" in ip and (before or after) else ip) + after
      text = pathlib.Path("/etc/node-file/node.yaml").read_text()
      text = re.sub(r"(//)?\$\((POD_IP|HOST_IP|NODE_NAME)\)(:[0-9])?", value, text)
      pathlib.Path("/etc/disagg-node/node.yaml").write_text(text)
  env:
    {{- include "disagg-node.where" . | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  resources:
    limits: {cpu: 500m, memory: 128Mi}
  volumeMounts:
    - {name: common-node-file, mountPath: /etc/node-file, readOnly: true}
    - {name: node-file, mountPath: /etc/disagg-node}
{{- end }}
{{- end }}
{{- end }}

{{- /* Takes (name of the ConfigMap, whether a copy is filled in). */}}
{{- define "disagg-node.nodeFileVolumes" -}}
{{- if last . -}}
- name: node-file
  emptyDir: {}
- name: common-node-file
  configMap: {name: {{ first . }}}
{{- else -}}
- name: node-file
  configMap: {name: {{ first . }}}
{{- end }}
{{- end }}

{{- define "disagg-node.image-and-port" -}}
image: {{ include "disagg-node.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
ports:
  - name: metrics
    containerPort: {{ .Values.port }}
    protocol: TCP
  {{- if include "disagg-node.grpc" . }}
  - name: control
    containerPort: {{ .Values.launch.grpc.port }}
    protocol: TCP
  {{- end }}
{{- end }}

{{- /* The pages speak for the daemon, never for engines. Takes (root, path). */}}
{{- define "disagg-node.probe" -}}
{{- $web := (first .).Values.web }}
{{- $guarded := or $web.basicAuthUsers $web.existingSecret }}
{{- if eq ($web.probes | default (ternary "tcp" "http" (not (empty $guarded)))) "tcp" }}
tcpSocket:
  port: metrics
{{- else }}
httpGet:
  path: {{ last . }}
  port: metrics
  scheme: {{ include "disagg-node.scheme" (first .) | upper }}
{{- end }}
periodSeconds: 10
timeoutSeconds: 5
{{- end }}

{{- define "disagg-node.mounts" -}}
- name: node-file
  mountPath: /etc/disagg-node
  readOnly: true
- name: run
  mountPath: /run/disagg-node
{{- if include "disagg-node.webSecret" . }}
- name: web
  mountPath: /etc/disagg-web
  readOnly: true
{{- end }}
{{- if include "disagg-node.grpc" . }}
- name: control
  mountPath: /etc/disagg-control
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- /* What serving by TLS and passwords takes; may be nothing. */}}
{{- define "disagg-node.webVolume" -}}
{{- with include "disagg-node.webSecret" . }}
- name: web
  {{- if and $.Values.web.tlsSecret (not $.Values.web.existingSecret) }}
  projected:
    sources:
      - secret: {name: {{ . | quote }}}
      - secret: {name: {{ $.Values.web.tlsSecret | quote }}}
  {{- else }}
  secret: {secretName: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- end }}

{{- /* The volumes of both profiles beside run folder and node file; may be nothing. */}}
{{- define "disagg-node.volumes" -}}
{{- include "disagg-node.webVolume" . }}
{{- if include "disagg-node.grpc" . }}
{{- with .Values.launch.grpc }}
- name: control
  projected:
    sources:
      - configMap: {name: {{ include "disagg-node.fullname" $ }}-control}
      - secret:
          name: {{ .tlsSecret | quote }}
          items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
      {{- with .clientCaSecret }}
      - secret:
          name: {{ . | quote }}
          items: [{key: ca.crt, path: client-ca.crt}]
      {{- end }}
      {{- with .tokenSecret }}
      - secret:
          name: {{ . | quote }}
          items: [{key: token, path: token}]
      {{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
