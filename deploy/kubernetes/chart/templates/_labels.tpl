{{- define "labels" -}}
app.kubernetes.io/name: cohort
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "behavior" -}}
scaleUp:
  policies: [{type: Percent, value: 100, periodSeconds: 15}]
scaleDown:
  stabilizationWindowSeconds: 300
  policies: [{type: Pods, value: 1, periodSeconds: 60}]
{{- end -}}

{{- define "setting" -}}
{{- $name := index . 0 -}}
{{- $value := index . 1 -}}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ $value = int64 $value }}{{ end -}}
{name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end -}}
