// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"ringvol.dev/tests/rig"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The API server listens on the address of its own service, which is an address of the node: so nothing has to
// translate between them.
const (
	serviceRange = "10.96.0.0/24"
	serviceIP    = "10.96.0.1"
	apiPort      = 443
	namesIP      = "10.96.0.10"
	nodeIP       = "10.89.0.1"
	otherIP      = "10.89.0.2"
	etcdURL      = "http://127.0.0.1:2379"
)

// network gives the first node its addresses, and joins the other one to it.
func (c *Cluster) network() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", serviceIP + "/32", "dev", "lo"},
		{"addr", "add", namesIP + "/32", "dev", "lo"},
		{"link", "add", "node0", "type", "bridge"},
		{"addr", "add", nodeIP + "/24", "dev", "node0"},
		{"link", "set", "node0", "up"},
	} {
		if _, err := rig.Run("ip", args...); err != nil {
			return err
		}
	}
	return c.Other.join(c.Node)
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

// authority signs what the parts prove themselves with: certificates of servers, and of clients, whose common name
// and organizations are the user and the groups.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	dir         string
	serial      int64
}

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key, dir: dir}
	template := a.template(pkix.Name{CommonName: "ringvol-e2e"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	if err := a.write("ca.crt", "CERTIFICATE", der); err != nil {
		return nil, err
	}
	// Tokens of service accounts are signed with a key of their own.
	_, err = a.newKey("tokens")
	return a, err
}

func (a *authority) template(subject pkix.Name) *x509.Certificate {
	a.serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.serial),
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

// issue makes NAME.crt and NAME.key.
func (a *authority) issue(name string, subject pkix.Name, addresses []string, names []string) error {
	key, err := a.newKey(name)
	if err != nil {
		return err
	}
	template := a.template(subject)
	template.DNSNames = names
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	return a.write(name+".crt", "CERTIFICATE", der)
}

func (a *authority) newKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, a.write(name+".key", "EC PRIVATE KEY", der)
}

func (a *authority) path(name string) string {
	return a.dir + "/" + name
}

func (a *authority) write(name, kind string, der []byte) error {
	return os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// kubeconfig makes NAME.conf, with a certificate for the user.
func (a *authority) kubeconfig(name, user string, groups ...string) (string, error) {
	if err := a.issue(name, pkix.Name{CommonName: user, Organization: groups}, nil, nil); err != nil {
		return "", err
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: "https://%s:%d", certificate-authority: %q}}]
users: [{name: e2e, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
`, serviceIP, apiPort, a.path("ca.crt"), a.path(name+".crt"), a.path(name+".key"))
	return a.path(name + ".conf"), os.WriteFile(a.path(name+".conf"), []byte(text), 0o600)
}
