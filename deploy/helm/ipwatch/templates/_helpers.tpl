{{- define "ipwatch.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Before 1.30 there is no field for AppArmor, but an annotation. */}}
{{- define "ipwatch.hasAppArmorField" -}}
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}

{{/* The values that are keys of the configuration, as variables. */}}
{{- define "ipwatch.env" -}}
{{- if .Values.observeOnly }}
- name: IPWATCH_OBSERVE_ONLY
  value: "true"
{{- end }}
{{- with .Values.kubernetes }}
{{- range $key := list "events" "whereabouts" "calico" "nodeConditions" }}
{{- if index $.Values.kubernetes $key }}
{{- if not $.Values.kubernetes.enabled }}
{{- fail (printf "kubernetes.%s needs kubernetes.enabled" $key) }}
{{- end }}
- name: IPWATCH_KUBERNETES__{{ snakecase $key | upper }}
  value: "true"
{{- end }}
{{- end }}
{{- with .eventNamespaces }}
{{- if not $.Values.kubernetes.events }}
{{- fail "kubernetes.eventNamespaces needs kubernetes.events" }}
{{- end }}
- name: IPWATCH_KUBERNETES__EVENT_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- with .Values.metrics }}
{{- if .enabled }}
- name: IPWATCH_METRICS__LISTEN
  value: {{ printf "%s:%d" (ternary (.address | default "0.0.0.0") "127.0.0.1" .exposed) (int .port) | quote }}
{{- if .exposed }}
- name: IPWATCH_METRICS__ALLOW_NON_LOOPBACK
  value: "true"
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A ClusterRole and its binding to ipwatch; if a place is named, a Role in that namespace. */}}
{{- define "ipwatch.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (hasKey . "place") -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ .name }}
  {{- with .place }}
  namespace: {{ . }}
  {{- end }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .place }}
  namespace: {{ . }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: ipwatch
    namespace: {{ .namespace }}
{{- end -}}
