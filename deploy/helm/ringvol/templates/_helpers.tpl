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

{{/* "true" or nothing. */}}
{{- define "ringvol.clustered" -}}
{{- if eq .Values.mode "controller" }}true{{ end -}}
{{- end }}

{{/* The port of an ADDR:PORT. */}}
{{- define "ringvol.port" -}}
{{ splitList ":" . | last }}
{{- end }}

{{/* Where `serve`, `controller` and `doctor` find the certificate. */}}
{{- define "ringvol.tlsEnv" -}}
- name: RINGVOL_TLS_CERT
  value: /etc/ringvol/tls/tls.crt
- name: RINGVOL_TLS_KEY
  value: /etc/ringvol/tls/tls.key
- name: RINGVOL_TLS_CA
  value: /etc/ringvol/tls/ca.crt
{{- end }}

{{/* Each controller by a name of its own, which is there before the pod is. */}}
{{- define "ringvol.controllers" -}}
{{- $name := printf "%s-controller" (include "ringvol.name" .) -}}
{{- range $i := until (int .Values.controller.replicas) -}}
{{ if $i }};{{ end }}{{ $name }}-{{ $i }}.{{ $name }}.{{ $.Release.Namespace }}.svc:{{ include "ringvol.port" $.Values.listen }}
{{- end -}}
{{- end }}

{{/* (dict "root" $ "component" "controller" or "node"): the Secret with its certificate. */}}
{{- define "ringvol.tlsSecret" -}}
{{- get .root.Values.tls.existingSecret .component | default (printf "%s-%s-tls" (include "ringvol.name" .root) .component) -}}
{{- end }}

{{/* The Secret with the certificate of the snapshot metadata sidecar. */}}
{{- define "ringvol.metadataSecret" -}}
{{- .Values.snapshotMetadata.tls.existingSecret | default (printf "%s-snapshot-metadata-tls" (include "ringvol.name" .)) -}}
{{- end }}

{{/* (dict "root" $ "topology" map "labels" list): --topology for each; labels come by the environment. */}}
{{- define "ringvol.topologyArgs" -}}
{{- range $key, $value := .topology }}
- {{ printf "--topology=%s=%s" $key $value | quote }}
{{- end }}
{{- range $i, $label := .labels }}
- {{ printf "--topology=%s=$(TOPOLOGY_%d)" $label $i | quote }}
{{- end }}
{{- end }}

{{/* What the sidecars of a whole cluster are told. */}}
{{- define "ringvol.sidecarArgs" -}}
# Copies between nodes take longer than the 10 s it is otherwise given; the driver goes on in any case.
- --timeout=60s
# For all nodes; its default is 5 requests a second.
- --kube-api-qps=50
- --kube-api-burst=100
{{- end }}

{{- define "ringvol.extraArgs" -}}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Of a sidecar's container in the controller's pod: it has the same user as the driver, whose socket is for that user alone. */}}
{{- define "ringvol.sidecarRest" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
resources:
  {{- toYaml .resources | nindent 2 }}
volumeMounts:
  - name: socket
    mountPath: /csi
{{- end }}

{{/* "true" or "false": what the CSIDriver object says. */}}
{{- define "ringvol.attachRequired" -}}
{{ and .Values.attach.enabled (not .Values.attach.ending) }}
{{- end }}

{{/* (dict "root" $ "anew" false): the CSIDriver object. anew: once more, as a hook that deletes the one that is there and makes this one
before anything else of the upgrade, because Kubernetes lets nobody change it in place. The upgrade itself finds it as it is to be. */}}
{{- define "ringvol.csiDriver" -}}
{{- with .root -}}
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: {{ .Values.driverName }}
  labels:
    {{- include "ringvol.labels" . | nindent 4 }}
  {{- if $.anew }}
  annotations:
    helm.sh/hook: pre-upgrade
    helm.sh/hook-delete-policy: before-hook-creation
  {{- end }}
spec:
  {{- if .Values.attach.enabled }}
  # The attach/detach controller says which node has a volume, and external-attacher tells the driver.
  {{- else }}
  # Volumes are where their node is: nothing is attached by the control plane.
  {{- end }}
  attachRequired: {{ include "ringvol.attachRequired" . }}
  # An inline volume is a pod's, whose namespace decides whether it may have one.
  podInfoOnMount: {{ .Values.inline.enabled }}
  # Volumes belong to one node and mostly to one pod, so kubelet may set their group, whatever the access mode.
  fsGroupPolicy: File
  # The scheduler asks for room first.
  storageCapacity: true
  # Persistent serves generic ephemeral volumes, too. Ephemeral are inline ones, which have neither capacity nor snapshots.
  volumeLifecycleModes:
    - Persistent
    {{- if .Values.inline.enabled }}
    - Ephemeral
    {{- end }}
  requiresRepublish: false
  {{- if and .Values.node.allocatablePeriodSeconds (semverCompare ">=1.34-0" .Capabilities.KubeVersion.Version) }}
  # How many volumes a node can have changes: it has no more than it has while no device is to be had.
  nodeAllocatableUpdatePeriodSeconds: {{ .Values.node.allocatablePeriodSeconds }}
  {{- end }}
  # On nodes with SELinux a volume is mounted with its pod's label, instead of labelling file by file.
  seLinuxMount: true
{{- end -}}
{{- end }}
