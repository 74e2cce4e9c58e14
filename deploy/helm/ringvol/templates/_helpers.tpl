{{/* What every object carries. */}}
{{- define "ringvol.labels" -}}
app.kubernetes.io/name: ringvol
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* (dict "root" $ "component" "node"): what pods are selected by; never changes. */}}
{{- define "ringvol.selector" -}}
app.kubernetes.io/name: ringvol
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "ringvol.name" -}}
{{- if contains "ringvol" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-ringvol" (.Release.Name | trunc 32 | trimSuffix "-") -}}
{{- end -}}
{{- end }}

{{- define "ringvol.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* One of .Values.sidecars: with a digest, here or in its name, it is that image, whatever its tag is moved to. */}}
{{- define "ringvol.sidecarImage" -}}
{{ .image }}{{ if and .digest (not (contains "@" .image)) }}@{{ .digest }}{{ end }}
{{- end }}

{{/* (dict "socket" "/csi/csi.sock", or "" where CSI_ENDPOINT says it; "ready" true or false): a probe over the driver's own
socket. Nobody on the network can be in its way there, as with HTTP. */}}
{{- define "ringvol.health" -}}
exec:
  command:
    - ringvol
    - health
    {{- with .socket }}
    - --endpoint=unix://{{ . }}
    {{- end }}
    {{- if .ready }}
    - --ready
    {{- end }}
# More than its own 3 s, so that it says what is wrong.
timeoutSeconds: 5
{{- end }}

{{/* "true" or nothing. */}}
{{- define "ringvol.snapshots" -}}
{{- $wanted := .Values.snapshots.enabled | toString -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1")) -}}
true
{{- end -}}
{{- end }}

{{/* The directory of our socket, as kubelet and we see it. */}}
{{- define "ringvol.pluginDir" -}}
{{ .Values.kubeletDir }}/plugins/{{ .Values.driverName }}
{{- end }}

{{/* Sidecars need the driver's socket, which is root's, and nothing else. */}}
{{- define "ringvol.sidecarSecurity" -}}
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* NAME=PATH,OPTION...;... */}}
{{- define "ringvol.pools" -}}
{{- range $i, $pool := .Values.pools -}}
{{ if $i }};{{ end }}{{ $pool.name }}={{ $pool.hostPath }}{{ with $pool.options }},{{ . }}{{ end }}
{{- end -}}
{{- end }}

{{- define "ringvol.poolMounts" -}}
{{- range .Values.pools }}
# HostToContainer: a disk that is mounted there later is seen.
- name: pool-{{ .name }}
  mountPath: {{ .hostPath }}
  mountPropagation: HostToContainer
{{- end }}
{{- end }}

{{- define "ringvol.poolVolumes" -}}
{{- range .Values.pools }}
- name: pool-{{ .name }}
  hostPath:
    path: {{ .hostPath }}
    type: {{ if has "init" (splitList "," (.options | default "")) }}DirectoryOrCreate{{ else }}""{{ end }}
{{- end }}
{{- end }}
