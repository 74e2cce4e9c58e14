// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// ControllerURI and AnyNodeURI are identities of certificates, NodeURI is that of one node.
const (
	ControllerURI = "ringvol://controller"
	AnyNodeURI    = "ringvol://node/*"
)

// NodeURI is the identity of a node's certificate.
func NodeURI(id string) string { return "ringvol://node/" + id }

// CA signs the certificates of a test's cluster. Keys are made anew for each and never leave the test.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	der  []byte
}

var serial atomic.Int64

// NewCA makes a CA that is valid for a day.
func NewCA(name string) (*CA, error) {
	return NewCASince(name, time.Now().Add(-time.Hour))
}

// NewCASince makes one that has been valid since then.
func NewCASince(name string, since time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: since, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &CA{cert: cert, key: key, der: der}, err
}

// PEM is the CA's certificate as --tls-ca wants it.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.der})
}

// Pool is the CA as a Go client's or server's trust.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// CertSpec says what a certificate is to look like. The zero value of a field is the ordinary one.
type CertSpec struct {
	URIs      []string           // identities; none: the certificate names nobody
	DNS       []string           // names that ringvol does not look at
	NotBefore time.Time          // an hour ago
	NotAfter  time.Time          // in a day
	Usage     []x509.ExtKeyUsage // client and server
	NoUsage   bool               // no extended key usage at all
}

// Cert is a certificate with its key.
type Cert struct {
	DER []byte
	Key crypto.Signer
	CA  *CA
}

// Issue signs a certificate.
func (ca *CA) Issue(spec CertSpec) (*Cert, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	number := serial.Add(1)
	template := &x509.Certificate{
		// Not the CA's name: the certificate would read as one that signs itself.
		SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: fmt.Sprintf("certificate %d", number)},
		NotBefore: spec.NotBefore, NotAfter: spec.NotAfter, DNSNames: spec.DNS,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: spec.Usage,
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	if len(spec.Usage) == 0 && !spec.NoUsage {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	for _, text := range spec.URIs {
		uri, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	return &Cert{DER: der, Key: key, CA: ca}, nil
}

// IssueFor signs an ordinary certificate with one identity: ControllerURI, AnyNodeURI or NodeURI().
func (ca *CA) IssueFor(uri string) (*Cert, error) {
	return ca.Issue(CertSpec{URIs: []string{uri}})
}

// CertPEM is the certificate as --tls-cert wants it.
func (c *Cert) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.DER})
}

// KeyPEM is the key as --tls-key wants it.
func (c *Cert) KeyPEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.Key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// TLS is the certificate as Go's own TLS takes it.
func (c *Cert) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{c.DER}, PrivateKey: c.Key}
}

// ClientTLS is a Go client's side of a connection to a process of ringvol: mutual, TLS 1.3, h2. Names of hosts mean
// nothing in these certificates, so the chain alone is checked here.
func (c *Cert) ClientTLS() *tls.Config {
	roots := c.CA.Pool()
	return &tls.Config{
		Certificates: []tls.Certificate{c.TLS()}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots})
			return err
		},
	}
}

// ServerTLS is a Go server's side, which asks for a certificate of the same CA.
func (c *Cert) ServerTLS() *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{c.TLS()}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.CA.Pool(),
	}
}

// TLSFiles are the files of one process.
type TLSFiles struct {
	Dir, Cert, Key, CA string
}

// Args are the flags that name them.
func (f TLSFiles) Args() []string {
	return []string{"--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA}
}

// WriteTLS writes a certificate, its key and the trust (its own CA, if none is named) into a directory that is made as
// needed. Done again it replaces them as kubelet does with a secret: all files at once, by a link that is renamed.
func WriteTLS(dir string, c *Cert, trust ...*CA) (TLSFiles, error) {
	if len(trust) == 0 {
		trust = []*CA{c.CA}
	}
	key, err := c.KeyPEM()
	if err != nil {
		return TLSFiles{}, err
	}
	var cas []byte
	for _, ca := range trust {
		cas = append(cas, ca.PEM()...)
	}
	return WriteTLSBytes(dir, c.CertPEM(), key, cas)
}

// WriteTLSBytes is WriteTLS with any bytes.
func WriteTLSBytes(dir string, cert, key, ca []byte) (TLSFiles, error) {
	version := fmt.Sprintf("..%d", serial.Add(1))
	if err := os.MkdirAll(filepath.Join(dir, version), 0o700); err != nil {
		return TLSFiles{}, err
	}
	files := TLSFiles{Dir: dir, Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}
	for path, text := range map[string][]byte{files.Cert: cert, files.Key: key, files.CA: ca} {
		if err := os.WriteFile(filepath.Join(dir, version, filepath.Base(path)), text, 0o600); err != nil {
			return TLSFiles{}, err
		}
	}
	data, next := filepath.Join(dir, "..data"), filepath.Join(dir, "..data_tmp")
	old, _ := os.Readlink(data)
	if err := os.Symlink(version, next); err != nil {
		return TLSFiles{}, err
	}
	if err := os.Rename(next, data); err != nil {
		return TLSFiles{}, err
	}
	for _, path := range []string{files.Cert, files.Key, files.CA} {
		err := os.Symlink(filepath.Join("..data", filepath.Base(path)), path)
		if err != nil && !os.IsExist(err) {
			return TLSFiles{}, err
		}
	}
	if old != "" {
		return files, os.RemoveAll(filepath.Join(dir, old))
	}
	return files, nil
}
