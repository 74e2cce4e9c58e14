// SPDX-License-Identifier: Apache-2.0

package cluster

import (
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
)

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
