{{- /* heddle.name: what all objects of the release are called, at most 40 characters, since a StatefulSet adds to it. */ -}}
{{- define "heddle.name" -}}
{{- if contains "heddle" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-heddle" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "heddle.labels" -}}
{{ include "heddle.selector" . }}
app.kubernetes.io/version: {{ include "heddle.version" . | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "heddle.selector" -}}
app.kubernetes.io/name: heddle
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "heddle.version" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* heddle.image: (list ROOT "controller") */ -}}
{{- define "heddle.image" -}}
{{- $root := index . 0 -}}
{{ printf "%s/heddle-%s:%s" (trimSuffix "/" $root.Values.image.repository) (index . 1) (include "heddle.version" $root) }}
{{- end }}

{{- /* heddle.service: by this name nodes and people reach the controller. */ -}}
{{- define "heddle.service" -}}
{{ printf "%s-controller.%s.svc" (include "heddle.name" .) .Release.Namespace }}
{{- end }}

{{- /* heddle.hosts: all names of the controller, with commas. */ -}}
{{- define "heddle.hosts" -}}
{{- $short := printf "%s-controller" (include "heddle.name" .) -}}
{{- concat (list $short (printf "%s.%s" $short .Release.Namespace) (include "heddle.service" .)) .Values.controller.hosts | join "," -}}
{{- end }}

{{- define "heddle.jobsClaim" -}}
{{ .Values.jobs.existingClaim | default (printf "%s-jobs" (include "heddle.name" .)) }}
{{- end }}

{{- /* Every container but own-state of nodes: the restricted standard of Pod Security, and nothing writable beside volumes. */ -}}
{{- define "heddle.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "heddle.podSecurity" -}}
runAsUser: {{ .Values.runAsUser }}
runAsGroup: {{ .Values.runAsUser }}
fsGroup: {{ .Values.runAsUser }}
# only once: what is private to the user (0600) stays so
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}
