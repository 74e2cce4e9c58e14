// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Types of TLS records and messages.
const (
	RecordChangeCipherSpec = 20
	RecordAlert            = 21
	RecordHandshake        = 22
	RecordData             = 23
	MessageKeyUpdate       = 24
)

// Records is a TLS 1.3 client that writes what records it likes once the handshake is over. It hears answers as they come,
// encrypted; what matters is whether the other end is still there.
type Records struct {
	Conn   net.Conn
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// keyLog takes the secrets that crypto/tls lays open for debugging.
type keyLog struct{ bytes.Buffer }

func (k *keyLog) clientSecret() ([]byte, error) {
	lines := bufio.NewScanner(bytes.NewReader(k.Bytes()))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 3 && fields[0] == "CLIENT_TRAFFIC_SECRET_0" {
			return hex.DecodeString(fields[2])
		}
	}
	return nil, errors.New("the handshake left no secret")
}

// DialRecords makes the handshake with a certificate.
func DialRecords(address string, cert *Cert) (*Records, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(hostileTimeout))
	var log keyLog
	config := cert.ClientTLS()
	config.KeyLogWriter = &log
	client := tls.Client(conn, config)
	if err := client.Handshake(); err != nil {
		conn.Close()
		return nil, err
	}
	if suite := client.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		conn.Close()
		return nil, fmt.Errorf("the suite is %s", tls.CipherSuiteName(suite))
	}
	r := &Records{Conn: conn}
	if r.secret, err = log.clientSecret(); err != nil {
		conn.Close()
		return nil, err
	}
	return r, r.keys()
}

// Close closes the connection without a word.
func (r *Records) Close() { r.Conn.Close() }

func expand(secret []byte, label string, length int) ([]byte, error) {
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(nil, uint16(length))
	info = append(info, byte(len(label)))
	info = append(append(info, label...), 0)
	return hkdf.Expand(sha256.New, secret, string(info), length)
}

func (r *Records) keys() error {
	key, err := expand(r.secret, "key", 16)
	if err != nil {
		return err
	}
	if r.iv, err = expand(r.secret, "iv", 12); err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	r.aead, err = cipher.NewGCM(block)
	r.seq = 0
	return err
}

// Seal makes a record of this type with so much padding; its length may be more than the protocol allows.
func (r *Records) Seal(kind byte, content []byte, padding int) []byte {
	inner := append(append(bytes.Clone(content), kind), make([]byte, padding)...)
	length := len(inner) + r.aead.Overhead()
	header := []byte{RecordData, 3, 3, byte(length >> 8), byte(length)}
	nonce := bytes.Clone(r.iv)
	for i := range 8 {
		nonce[4+i] ^= byte(r.seq >> (56 - 8*i))
	}
	r.seq++
	return r.aead.Seal(header, nonce, inner, header)
}

// Write sends a record.
func (r *Records) Write(kind byte, content []byte) error {
	_, err := r.Conn.Write(r.Seal(kind, content, 0))
	return err
}

// KeyUpdate has the next records encrypted with the next key, and asks for the same if told so.
func (r *Records) KeyUpdate(ask bool) ([]byte, error) {
	message := []byte{MessageKeyUpdate, 0, 0, 1, 0}
	if ask {
		message[4] = 1
	}
	record := r.Seal(RecordHandshake, message, 0)
	var err error
	if r.secret, err = expand(r.secret, "traffic upd", sha256.Size); err != nil {
		return nil, err
	}
	return record, r.keys()
}

// AwaitEnd reads until the other end closes. An error: it did not in time.
func AwaitEnd(conn net.Conn, limit time.Duration) error {
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	for buffer := make([]byte, 4096); ; {
		if _, err := conn.Read(buffer); err != nil {
			var netErr net.Error
			if errors.As(err, &netErr) && netErr.Timeout() {
				return errors.New("the connection is still open")
			}
			return nil
		}
	}
}
