module ringvol.dev

go 1.25.0

require (
	github.com/container-storage-interface/spec v1.12.0
	github.com/prometheus/client_model v0.6.2
	github.com/prometheus/common v0.66.1
	github.com/summerwind/h2spec v2.2.1+incompatible
	golang.org/x/net v0.56.0
	golang.org/x/sys v0.46.0
	google.golang.org/grpc v1.82.0
	google.golang.org/protobuf v1.36.11
	k8s.io/kubelet v0.35.0
)

require (
	github.com/fatih/color v1.19.0 // indirect
	github.com/kr/pretty v0.3.1 // indirect
	github.com/mattn/go-colorable v0.1.14 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/rogpeppe/go-internal v1.13.1 // indirect
	go.yaml.in/yaml/v2 v2.4.3 // indirect
	golang.org/x/text v0.38.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260414002931-afd174a4e478 // indirect
)
