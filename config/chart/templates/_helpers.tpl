{{/* The manifests of config, in the release's namespace: (dict "root" $ "files" (list "base/role" …)). A namespace may be a number. */}}
{{- define "lockstep.manifests" -}}
{{- $root := .root }}
{{- range .files }}
{{- $manifest := $root.Files.Get (printf "files/%s.yaml" .) | required (printf "the chart lacks files/%s.yaml" .) }}
---
{{ $manifest | replace "namespace: lockstep-system" (printf "namespace: %q" $root.Release.Namespace) |
  replace "lockstep-system" $root.Release.Namespace | trim }}
{{- end }}
{{- end }}

{{- define "lockstep.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* The manifest of a Deployment with its values: (dict "root" $ "file" "deployment/deployment" "values" .Values.driver). */}}
{{- define "lockstep.deployment" -}}
{{- $root := .root }}
{{- $values := .values }}
{{- $deployment := fromYaml (include "lockstep.manifests" (dict "root" $root "files" (list .file))) }}
{{- $_ := set $deployment.spec "replicas" (int $values.replicas) }}
{{- $template := $deployment.spec.template }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}
{{- $_ := set $container "image" (include "lockstep.image" $root) }}
{{- $_ := set $container "imagePullPolicy" $root.Values.image.pullPolicy }}
{{- $_ := set $container "args" (concat $container.args ($values.args | default list)) }}
{{- $limit := "--max-groups-in-flight" }}
{{- $driver := $root.Values.driver }}
{{- if and $driver.enabled (contains $limit (join " " $driver.args)) (not (regexMatch (printf "%s|--driver" $limit) (join " " $values.args))) }}
{{- fail (printf "driver.args has %s, but %s has a driver of its own, without a limit: add it to its args, too, or --driver" $limit $deployment.metadata.name) }}
{{- end }}
{{- $env := $values.env | default list }}
{{- $names := list }}
{{- range $env }}{{ $names = append $names .name }}{{ end }}
{{- range $container.env }}{{ if not (has .name $names) }}{{ $env = prepend $env . }}{{ end }}{{ end }}
{{- $_ := set $container "env" $env }}
{{- with $root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- with $values.tls }}
{{- range $volume := $pod.volumes }}
{{- if eq $volume.name "tls" }}{{ $_ := set $volume.secret "secretName" $values.tls.secretName }}{{ end }}
{{- end }}
{{- end }}
{{- range $field, $value := $values.pod }}
{{- if eq $field "resources" }}{{ $_ := set $container $field $value }}
{{- else if eq $field "annotations" }}{{ $_ := set $template.metadata $field $value }}
{{- else if eq $field "labels" }}{{ $_ := set $template.metadata $field (merge $template.metadata.labels $value) }}
{{- else }}{{ $_ := set $pod $field $value }}
{{- end }}
{{- end }}
---
{{ toYaml $deployment }}
{{- end }}

{{/* A budget for several replicas of which each is ready. The driver has none: its standby is never ready, so a budget would block
the drain of the leader's node. */}}
{{- define "lockstep.budget" -}}
{{- if gt (int .values.replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace | quote }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
{{- end }}
{{- end }}
