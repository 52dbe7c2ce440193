{{- define "armllm.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "armllm.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "armllm.labels" -}}
{{ include "armllm.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* What the pods of a RayCluster have in common. */}}
{{- define "armllm.rayPod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
volumes:
  {{- with .Values.model.existingClaim }}
  - name: models
    persistentVolumeClaim:
      claimName: {{ . | quote }}
      readOnly: true
  {{- end }}
  - name: hub
    {{- if .Values.hub.existingClaim }}
    persistentVolumeClaim:
      claimName: {{ .Values.hub.existingClaim | quote }}
    {{- else }}
    emptyDir: {}
    {{- end }}
  - name: tmp
    emptyDir: {}
  - name: memory
    emptyDir:
      medium: Memory
      sizeLimit: 1Gi
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "armllm.rayMounts" -}}
{{- if .Values.model.existingClaim -}}
- name: models
  mountPath: /models
  readOnly: true
{{ end -}}
- name: hub
  mountPath: /hub
- name: tmp
  mountPath: /tmp
- name: memory
  mountPath: /dev/shm
{{- end -}}
