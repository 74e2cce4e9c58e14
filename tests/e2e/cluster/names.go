// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serveNames answers what pods ask the cluster's name service, in place of CoreDNS: the addresses of pods that have a name below a
// headless service, POD.SERVICE.NAMESPACE.svc.cluster.local. Nothing of what runs here asks for others.
func (c *Cluster) serveNames() error {
	conn, err := net.ListenPacket("udp", net.JoinHostPort(namesIP, "53"))
	if err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			question := append([]byte(nil), buffer[:n]...)
			go func() {
				answer, err := c.answer(question)
				if err != nil {
					fmt.Fprintln(os.Stderr, "e2e: a question of a name:", err)
				} else if _, err := conn.WriteTo(answer, from); err != nil {
					fmt.Fprintln(os.Stderr, "e2e: an answer about a name:", err)
				}
			}()
		}
	}()
	return nil
}

func (c *Cluster) answer(question []byte) ([]byte, error) {
	var asked dnsmessage.Message
	if err := asked.Unpack(question); err != nil {
		return nil, err
	}
	answer := dnsmessage.Message{Header: dnsmessage.Header{ID: asked.ID, Response: true, Authoritative: true,
		RecursionDesired: asked.RecursionDesired, RecursionAvailable: true}, Questions: asked.Questions}
	if len(asked.Questions) != 1 {
		answer.RCode = dnsmessage.RCodeNotImplemented
		return answer.Pack()
	}
	address := c.address(asked.Questions[0].Name.String())
	switch {
	case address == nil:
		answer.RCode = dnsmessage.RCodeNameError
	case asked.Questions[0].Type == dnsmessage.TypeA:
		answer.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: asked.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
			Body:   &dnsmessage.AResource{A: [4]byte(address.To4())}}}
	}
	return answer.Pack()
}

// address is that of a pod below a headless service; nil: there is none.
func (c *Cluster) address(name string) net.IP {
	labels := strings.Split(strings.TrimSuffix(name, ".svc.cluster.local."), ".")
	if len(labels) != 3 || !strings.HasSuffix(name, ".svc.cluster.local.") {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	pod, err := c.Client.CoreV1().Pods(labels[2]).Get(ctx, labels[0], metav1.GetOptions{})
	if err != nil || pod.Spec.Subdomain != labels[1] {
		return nil
	}
	return net.ParseIP(pod.Status.PodIP).To4()
}
