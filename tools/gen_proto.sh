#!/bin/sh
# Renews the Go code of gocore/control/controlpb/control.proto. Run it from anywhere after a change of that file; it
# needs python3 with venv, Go and a package index, and leaves nothing behind but the two generated files.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet grpcio-tools==1.85.1
mkdir "$work/go" "$work/bin"
cd "$work/go"
go mod init tent-protoc-plugins
go get google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11 google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
go build -o "$work/bin/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
cd "$root"
PATH="$work/bin:$PATH" "$work/venv/bin/python" -m grpc_tools.protoc -I. \
    --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative \
    gocore/control/controlpb/control.proto
