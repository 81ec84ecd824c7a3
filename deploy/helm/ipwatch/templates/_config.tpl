{{/* The configuration. Keys without a table come first, or they would belong to one. */}}
{{- define "ipwatch.config" -}}
{{- $more := .Values.config -}}
{{- if regexMatch "(?m)^[ \\t]*[\"']?observe_only\\b" $more -}}
{{- fail "observe_only is set by the value observeOnly: leave it out of config" -}}
{{- end -}}
{{- if and .Values.metrics.enabled (regexMatch "(?m)^[ \\t]*(\\[[ \\t]*)?metrics\\b" $more) -}}
{{- fail "metrics.enabled writes the table [metrics]: leave it out of config, or metrics.enabled off" -}}
{{- end -}}
{{- if .Values.observeOnly -}}
observe_only = true
{{ end -}}
{{- with $more -}}
{{ trimSuffix "\n" . }}
{{ end -}}
{{- with .Values.metrics -}}
{{- if .enabled -}}
[metrics]
{{- if .exposed }}
listen = "0.0.0.0:{{ int .port }}"
allow_non_loopback = true
{{- else }}
listen = "127.0.0.1:{{ int .port }}"
{{- end }}
{{ end -}}
{{- end -}}
{{- end -}}
