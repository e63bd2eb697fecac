// Package services tests engines whose names are in real metadata services. These are etcd, Redis, and an HTTP server
// with the protocol of Mooncake's own. It is a module by itself, so that nothing of a server of etcd stands in
// the dependencies of tent.
package services
