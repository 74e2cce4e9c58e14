// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"ringvol.dev/tests/rig"
)

// The kubeconfig that a cluster is offered by which is to be used from outside (./dev e2e up).
const kubeconfigVar = "RINGVOL_E2E_KUBECONFIG"

// Offered says whether this cluster is to stay up for others.
func Offered() bool { return os.Getenv(kubeconfigVar) != "" }

const apiSocket = "api.sock"

// Offer lets the outside in, for as long as the cluster lives. The way from one network namespace into the other is a socket in
// the cluster's directory.
func (c *Cluster) Offer() error {
	listener, err := net.Listen("unix", c.path(apiSocket))
	if err != nil {
		return err
	}
	return passOn(listener, "tcp", net.JoinHostPort(serviceIP, fmt.Sprint(apiPort)))
}

// offer is the outside's part: a port of the loopback that leads to the API server, a kubeconfig that names it, and beside that who
// is to be ended when it is needed no more.
func offer(dir, kubeconfig string) error {
	inner := filepath.Join(dir, apiSocket)
	if err := rig.Eventually(15*time.Minute, func() error {
		_, err := os.Stat(inner)
		return err
	}); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	files := map[string]string{}
	for _, name := range []string{"ca.crt", "admin.crt", "admin.key"} {
		text, err := os.ReadFile(filepath.Join(dir, "pki", name))
		if err != nil {
			return err
		}
		files[name] = base64.StdEncoding.EncodeToString(text)
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: ringvol-e2e
clusters: [{name: ringvol-e2e, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: ringvol-e2e, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: ringvol-e2e, context: {cluster: ringvol-e2e, user: ringvol-e2e}}]
`, listener.Addr(), files["ca.crt"], files["admin.crt"], files["admin.key"])
	if err := os.WriteFile(kubeconfig+".pid", fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(kubeconfig+".new", []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Rename(kubeconfig+".new", kubeconfig); err != nil {
		return err
	}
	return passOn(listener, "unix", inner)
}

// passOn joins each connection that comes to one that it makes.
func passOn(listener net.Listener, network, address string) error {
	for {
		from, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer from.Close()
			to, err := net.Dial(network, address)
			if err != nil {
				return
			}
			defer to.Close()
			ended := make(chan struct{}, 2)
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					ended <- struct{}{}
				}()
			}
			<-ended
		}()
	}
}
