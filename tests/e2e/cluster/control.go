// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"ringvol.dev/tests/rig"
)

// The API server listens on the address of its own service, which is an address of the node: so nothing has to
// translate between them.
const (
	serviceRange = "10.96.0.0/24"
	serviceIP    = "10.96.0.1"
	apiPort      = 443
	nodeIP       = "10.89.0.1"
	podRange     = "10.244.0.0/16"
	etcdURL      = "http://127.0.0.1:2379"
)

// network gives the node its addresses.
func (c *Cluster) network() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", serviceIP + "/32", "dev", "lo"},
		{"link", "add", "node0", "type", "bridge"},
		{"addr", "add", nodeIP + "/24", "dev", "node0"},
		{"link", "set", "node0", "up"},
	} {
		if _, err := rig.Run("ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// control starts the control plane and makes the clients.
func (c *Cluster) control() error {
	pki, err := newAuthority(c.path("pki"))
	if err != nil {
		return err
	}
	c.pki = pki
	if err := pki.issue("apiserver", pkix.Name{CommonName: "kube-apiserver"},
		[]string{serviceIP, nodeIP, "127.0.0.1"}, []string{"localhost", "kubernetes.default.svc"}); err != nil {
		return err
	}
	if err := pki.issue("apiserver-kubelet", pkix.Name{CommonName: "kube-apiserver",
		Organization: []string{"system:masters"}}, nil, nil); err != nil {
		return err
	}
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.startAPIServer(); err != nil {
		return err
	}
	return c.startControllers()
}

func (c *Cluster) startEtcd() error {
	// What is asked of etcd here is to be one, not to outlive the machine.
	etcd := c.process("etcd", c.bin("etcd"), "--data-dir="+c.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn")
	return etcd.Start()
}

func (c *Cluster) startAPIServer() error {
	admin, err := c.pki.kubeconfig("admin", "admin", "system:masters")
	if err != nil {
		return err
	}
	c.Kubeconfig = admin
	server := c.process("kube-apiserver", c.bin("kube-apiserver"),
		"--etcd-servers="+etcdURL,
		"--bind-address=0.0.0.0", fmt.Sprintf("--secure-port=%d", apiPort), "--advertise-address="+nodeIP,
		"--service-cluster-ip-range="+serviceRange,
		"--cert-dir="+c.path("pki"),
		"--client-ca-file="+c.pki.path("ca.crt"),
		"--tls-cert-file="+c.pki.path("apiserver.crt"), "--tls-private-key-file="+c.pki.path("apiserver.key"),
		"--kubelet-certificate-authority="+c.pki.path("ca.crt"),
		"--kubelet-client-certificate="+c.pki.path("apiserver-kubelet.crt"),
		"--kubelet-client-key="+c.pki.path("apiserver-kubelet.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.pki.path("tokens.key"),
		"--service-account-signing-key-file="+c.pki.path("tokens.key"),
		"--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
	if err := server.Start(); err != nil {
		return err
	}
	if c.Config, err = clientcmd.BuildConfigFromFlags("", admin); err != nil {
		return err
	}
	c.Config.QPS, c.Config.Burst = -1, -1
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return err
	}
	return rig.Eventually(2*time.Minute, func() error {
		if err := server.Ended(); err != nil {
			return rig.Stop(err)
		}
		return ready(c.Client.Discovery().RESTClient(), "/readyz")
	})
}

func ready(client rest.Interface, path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return client.Get().AbsPath(path).Do(ctx).Error()
}

func (c *Cluster) startControllers() error {
	manager, err := c.pki.kubeconfig("controller-manager", "system:kube-controller-manager")
	if err != nil {
		return err
	}
	scheduler, err := c.pki.kubeconfig("scheduler", "system:kube-scheduler")
	if err != nil {
		return err
	}
	if err := c.process("kube-controller-manager", c.bin("kube-controller-manager"),
		"--kubeconfig="+manager, "--leader-elect=false", "--use-service-account-credentials",
		"--cert-dir="+c.path("pki"), "--root-ca-file="+c.pki.path("ca.crt"),
		"--service-account-private-key-file="+c.pki.path("tokens.key")).Start(); err != nil {
		return err
	}
	return c.process("kube-scheduler", c.bin("kube-scheduler"),
		"--kubeconfig="+scheduler, "--leader-elect=false", "--cert-dir="+c.path("pki")).Start()
}
